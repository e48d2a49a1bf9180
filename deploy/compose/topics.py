"""Makes the topics, once the brokers are there: a container that does its work once.

`python -m deploy.compose.topics` ends with 0 when every topic is there as the catalogue says, 75 when the cluster does
not answer, 78 when a topic differs.
"""

import asyncio
import sys

from shared.eos.errors import EXIT_FENCED
from shared.kafka.admin import ensure_topics
from shared.kafka.errors import KafkaUnavailableError, TopicMismatchError
from shared.settings import EXIT_CONFIG, bootstrap_servers

_DEADLINE_S = 120.0


def main() -> int:
    """Make what is missing, saying so on stdout."""
    brokers = bootstrap_servers()
    if brokers is None:
        print("topics: ONCE_BOOTSTRAP_SERVERS is not set", file=sys.stderr)
        return EXIT_CONFIG
    try:
        created = asyncio.run(ensure_topics(brokers, deadline_s=_DEADLINE_S))
    except KafkaUnavailableError as error:
        print(f"topics: {error}", file=sys.stderr)
        return EXIT_FENCED
    except TopicMismatchError as error:
        print(f"topics: {error}", file=sys.stderr)
        return EXIT_CONFIG
    print(f"topics: {len(created)} made, the others were there", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
