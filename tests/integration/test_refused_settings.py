"""Settings under which exactly-once would not hold are refused at start-up, with the reason."""

from pathlib import Path

import pytest

from deploy.local.kafka import LocalKafka
from tests.harness import Service

pytestmark = [pytest.mark.stack, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"PRODUCER_ACKS": "1"}, "ONCE_PRODUCER_ACKS"),
        ({"PRODUCER_ENABLE_IDEMPOTENCE": "false"}, "ONCE_PRODUCER_ENABLE_IDEMPOTENCE"),
        ({"PRODUCER_RETRIES": "0"}, "ONCE_PRODUCER_RETRIES"),
        ({"PRODUCER_MAX_IN_FLIGHT": "6"}, "ONCE_PRODUCER_MAX_IN_FLIGHT"),
        ({"TRANSACTION_TIMEOUT_MS": "99999999"}, "transaction.max.timeout.ms"),
        ({"TRANSACTIONAL_ID": "{service}-{topic}"}, "ONCE_TRANSACTIONAL_ID"),
        ({"FENCING": "group_generation"}, "KIP-447"),
        ({"SESSION_TIMEOUT_MS": "soon"}, "ONCE_SESSION_TIMEOUT_MS"),
    ],
)
def test_an_unsafe_setting_ends_with_78_and_says_why(
    kafka: LocalKafka, tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    service = Service("transform", kafka.bootstrap_servers, tmp_path, **settings).start()
    assert service.wait_exit(30) == 78
    refused = [line for line in service.log() if line["event"] == "settings refused"]
    assert reason in str(refused[0]["reason"])
