"""Makes the topics and the access rules, once the brokers are there: a container that does its work once.

`python -m deploy.compose.topics` ends with 0 when every topic is there as the catalogue says and every broker decides
by the rules, 75 when the cluster does not answer, 78 when a topic differs, or a setting or the principal is refused.
"""

import asyncio
import sys

from shared.eos.errors import EXIT_FENCED
from shared.kafka.admin.acls import NoAuthorizerError, ensure_rules
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.access import Access, tls_of
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError, TopicMismatchError
from shared.settings import EXIT_CONFIG, SettingsError, bootstrap_servers, partitions, replication_factor, tls_files

_DEADLINE_S = 120.0


async def make(access: Access, partition_count: int, replicas: int) -> None:
    """Make what is missing, saying so on stdout.

    Raises:
        KafkaUnavailableError: the cluster does not answer in time.
        TopicMismatchError: a topic exists with another number of partitions.
        NoAuthorizerError: the brokers check no rules.
    """
    created = await ensure_topics(access, partition_count, replicas, deadline_s=_DEADLINE_S)
    print(f"topics: {len(created)} made, the others were there", flush=True)
    changed = await ensure_rules(access)
    print(f"topics: {len(changed.created)} access rules made, {len(changed.removed)} removed", flush=True)


def main() -> int:
    """Do it; the exit code."""
    brokers = bootstrap_servers()
    if brokers is None:
        print("topics: ONCE_BOOTSTRAP_SERVERS is not set", file=sys.stderr)
        return EXIT_CONFIG
    try:
        asyncio.run(make(Access(brokers, tls_of(*tls_files())), partitions(), replication_factor()))
    except (DeniedError, TopicMismatchError, NoAuthorizerError, SettingsError) as error:
        print(f"topics: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except KafkaUnavailableError as error:
        print(f"topics: {error}", file=sys.stderr)
        return EXIT_FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
