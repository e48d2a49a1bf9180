"""Records made from others: their lineage, and the refusal of those that a new owner could not complete."""

import pytest

from shared.eos.crash import CrashPoints
from shared.eos.errors import FatalError
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.catalogue import PAYMENTS_ACCEPTED
from shared.kafka.runtime.scope import TransactionScope
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.settings import RuntimeSettings

ALERTS, RECENT = "velocity.alerts", "velocity.recent"
RECORD = Record(PAYMENTS_ACCEPTED, 2, 7, 0, b"key", b"value", ())
SOURCE = ("source", b"payments.accepted:2:7")


def task() -> Task:
    return Task("velocity", (PAYMENTS_ACCEPTED, 2), RECENT, Stores())


@pytest.mark.parametrize(
    ("headers", "made"),
    [
        ((), (("origin", b"payments.accepted:2:7"), SOURCE)),
        ((("origin", b"payments.raw:0:1"), ("other", b"")), (("origin", b"payments.raw:0:1"), SOURCE)),
        (
            (("origin-time", b"5"), ("origin", b"payments.raw:0:1")),
            (("origin", b"payments.raw:0:1"), SOURCE, ("origin-time", b"5")),
        ),
    ],
    ids=["without an origin", "origin", "origin time"],
)
def test_an_output_has_the_lineage_of_its_record(
    headers: tuple[tuple[str, bytes], ...], made: tuple[tuple[str, bytes], ...]
) -> None:
    record = RECORD._replace(headers=headers)
    assert record.output(ALERTS, b"k", b"v") == Output(ALERTS, 2, b"k", b"v", made)
    assert record.output(ALERTS, b"k", b"v", partition=0).partition == 0


def test_outputs_are_counted_by_topic_and_partition() -> None:
    one = task()
    one.count([RECORD.output(ALERTS, None, b"", partition=at) for at in (0, 1, 1)])
    one.count([Output(RECENT, 2, b"key", b"change", ())])
    assert one.begin().records == {ALERTS: {0: 1, 1: 2}, RECENT: {2: 1}}


@pytest.mark.parametrize(
    "source",
    [None, b"payments.accepted:1:7", b"payments.raw:2:7", b"payments.accepted:22:7"],
    ids=["none", "another partition", "another topic", "a longer number"],
)
def test_an_output_without_a_source_of_its_partition_is_refused(source: bytes | None) -> None:
    headers = () if source is None else (("source", source),)
    with pytest.raises(FatalError, match=r"velocity\.alerts .*payments\.accepted:2 .*`Record\.output`"):
        task().count([Output(ALERTS, 2, b"k", b"v", headers)])


async def test_a_transaction_with_a_topic_that_is_not_named_is_refused() -> None:
    settings = RuntimeSettings(bootstrap_servers="127.0.0.1:1")
    member = GroupMember("velocity")
    scope = TransactionScope(
        "velocity",
        PAYMENTS_ACCEPTED,
        "velocity-0",
        settings,
        CrashPoints("", lambda _: None),
        lambda: member,
        outputs=[ALERTS, RECENT],
    )
    one = task()
    one.count([RECORD.output(ALERTS, b"k", b"v"), RECORD.output("velocity.more", b"k", b"v")])
    with pytest.raises(FatalError, match=r"velocity writes to velocity\.more: name all topics"):
        await scope.commit({one: 8})
