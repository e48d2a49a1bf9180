"""Settings that would break exactly-once are refused at start, with the reason."""

import re
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.prerequisites import require_faketime
from tests.harness import Service
from tests.tiers import mostly_full

pytestmark = [pytest.mark.timeout(240)]  # the first test may start a cluster


@pytest.mark.parametrize(
    ("settings", "reason"),
    mostly_full(
        [
            ({"PRODUCER_ACKS": "1"}, "ONCE_PRODUCER_ACKS"),
            BROKERS := ({"TRANSACTION_TIMEOUT_MS": "99999999"}, "transaction.max.timeout.ms"),
            ({"TRANSACTION_OPEN_MS": "9000"}, "ONCE_TRANSACTION_TIMEOUT_MS"),
            ({"FENCING": "group_generation"}, "ONCE_FENCING"),
            ({"STOP_DEADLINE_S": "soon"}, "ONCE_STOP_DEADLINE_S"),
        ],
        [BROKERS],
    ),
)
def test_an_unsafe_setting_exits_with_78_and_says_why(
    kafka: LocalKafka, tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    service = Service("transform", kafka.bootstrap_servers, tmp_path, **settings).start()
    assert service.wait_exit(30) == 78
    refused = [line for line in service.log() if line["event"] == "settings refused"]
    assert reason in str(refused[0]["reason"])


def with_clock(service: Service, offset: str) -> Service:
    """Shift the service's clock by this offset; its rate stays right."""
    service.process.env |= {"LD_PRELOAD": require_faketime(), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return service


@pytest.mark.parametrize(
    ("name", "offset_s", "way"),
    mostly_full(
        [("gateway", 3600, "ahead of"), BEHIND := ("ingest", -3600, "behind"), ("balances", 60, "ahead of")], [BEHIND]
    ),
)
def test_a_wrong_clock_exits_with_78_and_says_how_wrong(
    kafka: LocalKafka, tmp_path: Path, name: str, offset_s: int, way: str
) -> None:
    own = {
        "gateway": {"GATEWAY_PORT": "0"},
        "balances": {"VIEW_PORT": "0", "VIEW_DATABASE": f"sqlite:///{tmp_path / 'view.sqlite'}"},
    }
    service = with_clock(
        Service(name, kafka.bootstrap_servers, tmp_path, **own.get(name, {})), f"{offset_s:+}s"
    ).start()
    assert service.wait_exit(30) == 78
    [refused] = [line for line in service.log() if line["event"] == "settings refused"]
    said = re.search(rf"clock is (\d+) s {way} the brokers', and 10 s are .*SKEW_S_MAX", str(refused["reason"]))
    assert said, refused["reason"]
    assert abs(int(said[1]) - abs(offset_s)) < 10, "the reported skew is wrong"


def test_a_clock_within_the_allowed_skew_is_accepted(kafka: LocalKafka, tmp_path: Path) -> None:
    service = with_clock(Service("transform", kafka.bootstrap_servers, tmp_path, CLOCK_SKEW_S_MAX="90"), "+60s").start()
    try:
        service.wait_ready()
    finally:
        assert service.process.terminate() == 0
