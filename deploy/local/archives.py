"""Make the brokers' class data archive: start one broker, wait for it and stop it.

Run `python -m deploy.local.archives`; progress goes to stderr. Invariant: the archive is put where it belongs in
one step when it is whole.
"""

import sys
import tempfile
from pathlib import Path

from deploy.local import jars
from deploy.local.kafka.cluster import KafkaNotReadyError, LocalKafka
from deploy.local.prerequisites import PrerequisiteError, require_java

_STOP_DEADLINE_S = 120.0


def make() -> Path:
    """The path of the archive, made if it is not there."""
    archive = jars.archive_path(require_java(), jars.classpath())
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        new = Path(directory) / archive.name
        kafka = LocalKafka(Path(directory) / "kafka", brokers=1, heap_mb=256, archive_at_exit=new)
        kafka.start()
        try:
            kafka.wait_ready()
            [broker] = kafka.processes
            broker.request_stop()
            broker.wait(_STOP_DEADLINE_S)
            if not new.exists():
                raise KafkaNotReadyError(f"the broker wrote no class data archive:\n{broker.log_tail()}")
        finally:
            kafka.kill()
        new.replace(archive)
    return archive


def main() -> int:
    """Make the archive, and return 0 without it as well: brokers start without it, more slowly."""
    print("archive: the brokers' classes, so that they start in half of the time (10 s, once)", file=sys.stderr)
    try:
        made = make()
    except (PrerequisiteError, jars.JarError, KafkaNotReadyError, OSError) as error:
        print(f"archive: none, so brokers start more slowly: {error}", file=sys.stderr)
        return 0
    print(f"archive: {made.name}, {made.stat().st_size // 1_000_000} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
