"""Apply the access rules to brokers that fail, leave and register."""

from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from shared.kafka.admin.acls import Changed, Entry, ensure_rules, entry
from shared.kafka.admin.rules import Kind, Operation, Rule
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import DeniedError
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values
from tests.broker_errors import CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER

WANTED = Rule("ingest", Kind.GROUP, "ingest", Operation.READ)
STRAY = Rule("stranger", Kind.GROUP, "ingest", Operation.READ)


RESOURCE = ("ResourceType", "ResourceName", "PatternType")


def acl(one: Entry) -> Values:
    return dict(zip(("Principal", "Host", "Operation", "PermissionType"), one[3:], strict=True))


class Brokers(Cluster):
    """A cluster whose brokers answer here.

    Args:
        seen: what the metadata names at first, and after each refresh; the last one stays.
        rules: that each broker has.
        errors: of the next changes, by whether they are the filter's own or a matching rule's; then all succeed.
    """

    def __init__(self, seen: list[list[int]], rules: dict[int, set[Entry]], errors: list[tuple[int, int]]) -> None:
        super().__init__("127.0.0.1:1", deadline_s=5)
        self._seen = seen
        self.rules = rules
        self.errors = errors
        self.asked: set[int] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    def brokers(self) -> list[int]:
        return self._seen[0]

    async def refresh(self) -> None:
        if len(self._seen) > 1:
            del self._seen[0]

    async def send(self, node_id: int, *_: Any, **__: Any) -> Any:
        self.asked.add(node_id)
        held = [dict(zip(RESOURCE, one[:3], strict=True)) | {"Acls": [acl(one)]} for one in self.rules[node_id]]
        return {"ErrorCode": 0, "ErrorMessage": None, "Resources": held}

    async def send_to_any(self, request: Request) -> Any:
        own, matching = self.errors.pop(0) if self.errors else (0, 0)
        creating = request.api == "CreateAcls"
        entries = {Entry(*fields.values()) for fields in request.values["Creations" if creating else "Filters"]}
        if not own and not matching:
            for held in self.rules.values():
                held.symmetric_difference_update(entries)
        if creating:
            return {"Results": [{"ErrorCode": own, "ErrorMessage": None}]}
        matched = {"ErrorCode": matching, "ErrorMessage": "this one"}
        return {"FilterResults": [{"ErrorCode": own, "ErrorMessage": None, "MatchingAcls": [matched]}]}


Make = Callable[..., Awaitable[tuple[Changed, Brokers]]]


@pytest.fixture
def ensured(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make the rules of such brokers exactly WANTED."""
    monkeypatch.setattr("shared.kafka.admin.acls.POLL_S", 0)
    monkeypatch.setattr("shared.kafka.client.cluster.RETRY_BACKOFF_S", 0.001)

    async def make(
        *errors: tuple[int, int], held: Rule | None = None, seen: list[list[int]] | None = None
    ) -> tuple[Changed, Brokers]:
        seen = seen or [[0]]
        rules = {node_id: {entry(held)} if held else set() for node_ids in seen for node_id in node_ids}
        cluster = Brokers(seen, rules, list(errors))
        monkeypatch.setattr("shared.kafka.admin.acls.Cluster", lambda *_, **__: cluster)
        return await ensure_rules("127.0.0.1:1", [WANTED]), cluster

    return make


async def test_missing_rules_are_created_and_unknown_ones_removed(ensured: Make) -> None:
    changed, cluster = await ensured(held=STRAY)
    assert changed == Changed((entry(WANTED),), (entry(STRAY),))
    assert cluster.rules == {0: {entry(WANTED)}}


async def test_a_change_that_fails_for_a_moment_is_retried(ensured: Make) -> None:
    _, cluster = await ensured((NOT_CONTROLLER, 0))
    assert cluster.rules == {0: {entry(WANTED)}}
    _, cluster = await ensured((0, 0), (0, NOT_CONTROLLER), (NOT_CONTROLLER, 0), held=STRAY)
    assert cluster.rules == {0: {entry(WANTED)}}
    assert cluster.errors == []


async def test_a_denied_change_is_reported(ensured: Make) -> None:
    with pytest.raises(DeniedError, match=r"the rules cannot be written: ClusterAuthorizationFailedError .*a rule"):
        await ensured((CLUSTER_AUTHORIZATION_FAILED, 0))
    with pytest.raises(DeniedError, match=r"rules cannot be removed: ClusterAuthorizationFailedError .*this one"):
        await ensured((0, 0), (0, CLUSTER_AUTHORIZATION_FAILED), held=STRAY)


async def test_nothing_is_changed_while_no_broker_is_registered(ensured: Make) -> None:
    changed, cluster = await ensured(seen=[[], [0]], held=WANTED)
    assert changed == Changed((), ())
    assert cluster.asked == {0}


async def test_a_broker_that_registers_meanwhile_is_checked_as_well(ensured: Make) -> None:
    _, cluster = await ensured(seen=[[0], [0, 1]])
    assert cluster.asked == {0, 1}
