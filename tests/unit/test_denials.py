"""Denials are reported once. Credentials that become unusable at run time are denials."""

import datetime as dt
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.security.certificates import Authority, open_authority
from shared.eos.errors import AbortableError, FatalError, FencedError, UnknownOutcomeError, as_eos_error
from shared.kafka.admin.transactions import error_of, look, producers_of
from shared.kafka.client import plain_producer
from shared.kafka.client.access import Access, Tls
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import (
    DeniedError,
    KafkaUnavailableError,
    classify,
    denial,
    denied,
    gravity,
    is_denied,
)
from shared.kafka.runtime.process import exit_code
from shared.settings import MonitorSettings, SettingsError
from tests.broker_errors import NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC, broker_error

BROKERS = "127.0.0.1:1"
TOPIC_DENIED = "TopicAuthorizationFailedError"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return open_authority(tmp_path)


@pytest.fixture
def access(authority: Authority) -> Access:
    return Access(BROKERS, Tls(str(authority.ca_file), str(authority.identity("monitor"))))


@pytest.fixture
def unusable(authority: Authority, access: Access) -> Access:
    """Access whose identity file is gone."""
    authority.identity_file("monitor").unlink()
    return access


def came_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_a_denial_is_reported_without_a_known_principal(authority: Authority, access: Access) -> None:
    assert str(denied(access, "writing")).startswith("denied to monitor (by ")
    authority.identity("monitor", valid=dt.timedelta(seconds=-1))
    assert "denied to an unknown principal (ONCE_TLS_IDENTITY_FILE is " in str(denied(access, "writing"))
    assert "whose certificate expired on" in access.bearer
    authority.identity_file("monitor").unlink()
    assert "which cannot be read (No such file or directory)" in str(denied(access, "writing"))


def test_a_denial_is_found_among_the_causes_of_an_error() -> None:
    first = denied(BROKERS, "reading")
    error = came_from(FatalError("it did not end"), came_from(UnknownOutcomeError("no answer"), first))
    assert is_denied(error)
    assert denial(error, BROKERS) is first
    made = denial(classify(broker_error(TOPIC_AUTHORIZATION_FAILED, "payments.raw")), BROKERS)
    assert str(made).startswith("denied to a client without TLS: TopicAuthorizationFailedError: ")
    assert "payments.raw" in str(made)
    for other in (
        broker_error(NOT_ENOUGH_REPLICAS, "gone"),
        UnknownOutcomeError("no answer"),
        KafkaUnavailableError("away"),
    ):
        assert denial(other, BROKERS) is None


def test_a_denial_that_came_through_the_runtime_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONCE_BOOTSTRAP_SERVERS", BROKERS)
    monkeypatch.setattr("shared.kafka.runtime.process.logs.configure", lambda *_, **__: None)
    first = denied(BROKERS, "reading")

    def work(_: MonitorSettings) -> int:
        raise UnknownOutcomeError(str(first)) from first

    assert exit_code("monitor", MonitorSettings, work) == 78
    [line] = caplog.records
    assert (line.message, line.__dict__["reason"]) == ("denied", str(first))


async def test_credentials_that_became_unusable_are_a_denial(unusable: Access) -> None:
    with pytest.raises(DeniedError, match=r"ONCE_TLS_IDENTITY_FILE is .*cannot be read") as refused:
        await Cluster(unusable).__aenter__()
    assert isinstance(refused.value.__cause__, SettingsError)
    with pytest.raises(DeniedError, match=r"ONCE_TLS_IDENTITY_FILE is .*cannot be read"):
        await plain_producer.start(unusable, "monitor", timeout_s=1)
    async with Brokers(unusable) as brokers:
        with pytest.raises(DeniedError, match=r"ONCE_TLS_IDENTITY_FILE is .*cannot be read"):
            await brokers.view([])
        brokers._addresses[0] = ("127.0.0.1", 1)
        with pytest.raises(BrokerSilentError, match=r"broker 0: ONCE_TLS_IDENTITY_FILE is .*cannot be read"):
            await brokers.ask(0, "a request")


async def test_a_topic_without_rights_is_denied_at_once() -> None:
    cluster = Cluster(BROKERS)
    cluster._client = Metadata("payments.raw")
    with pytest.raises(DeniedError, match=r"TopicAuthorizationFailedError .*payments.raw"):
        await cluster.partitions(["payments.raw"])
    assert cluster._client.asked == 1


async def test_a_topic_without_rights_is_not_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[object] = [(TOPIC_AUTHORIZATION_FAILED, "mine", False, []), (UNKNOWN_TOPIC, "gone", False, [])]

    async def described(*_: object) -> object:
        return SimpleNamespace(topics=rows, brokers=[(0, "127.0.0.1", 1)])

    async def unanswered(*_: object) -> object:
        raise BrokerSilentError(0, "asks nothing here")

    monkeypatch.setattr(Brokers, "_ask", described)
    monkeypatch.setattr(Brokers, "ask", unanswered)
    async with Brokers(BROKERS) as brokers:
        seen = await look(brokers, ["mine", "gone"])
        assert set(seen.unanswered[1:]) == {
            "topic mine is not described: " + TOPIC_DENIED,
            "topic gone does not exist",
        }
        with pytest.raises(LookupError, match="topic mine is not described: TopicAuthorizationFailedError"):
            await producers_of(brokers, ("mine", 0))


@pytest.mark.parametrize(("code", "name"), [(0, "no error"), (75, "UnknownLeaderEpochError"), (29, TOPIC_DENIED)])
def test_an_error_code_has_kafkas_name(code: int, name: str) -> None:
    assert error_of(code) == name


class Metadata:
    """A client without the right to describe a topic."""

    def __init__(self, topic: str) -> None:
        self.asked = 0
        self.cluster = self
        self._topic = topic

    @property
    def unauthorized_topics(self) -> set[str]:
        return {self._topic} if self.asked else set()

    def set_topics(self, topics: set[str]) -> None:
        pass

    def partitions_for_topic(self, topic: str) -> None:
        """None is known."""

    async def force_metadata_update(self) -> None:
        self.asked += 1


def test_the_gravest_of_several_errors_is_reported() -> None:
    abortable, unknown = AbortableError("refused whole"), UnknownOutcomeError("not acknowledged")
    fenced, fatal = FencedError("another took over"), FatalError("out of order")
    followed = as_eos_error("InvalidTxnState", "no partition was added")
    refused = classify(broker_error(TOPIC_AUTHORIZATION_FAILED, "payments.raw"))
    assert isinstance(refused, AbortableError)
    for errors, gravest in (
        ([abortable, unknown], unknown),
        ([unknown, fenced, abortable], fenced),
        ([fatal, unknown], fatal),
        ([followed, refused, unknown], refused),
    ):
        for order in permutations(errors):
            assert max(order, key=gravity) is gravest
