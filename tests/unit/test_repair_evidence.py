"""What a repair finds in the logs: requests that have expired, and records that cannot be decoded."""

from collections.abc import Sequence

import pytest

from deploy.repairs import evidence as evidence_module
from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import Mended, Sizes, mended, mender_of
from deploy.repairs.plan import Gap
from deploy.repairs.reference import History, Reference
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from shared.eos.records import Output, Record
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    LEDGER_ACCOUNTS,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_RAW,
    REFERENCE_SUBSCRIPTIONS,
)
from shared.events.codec import InternalInputError
from shared.events.effects import (
    EffectResult,
    EffectState,
    Subscription,
    Subscriptions,
    decode_request,
    decode_subscriptions,
    encode_result,
    encode_subscriptions,
)
from shared.events.headers import ORIGIN, REPAIR, SOURCE, Coordinates, Headers
from shared.events.postings import encode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.kafka.client.cluster import Target
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import OnRecords
from tests.installation import INSTALLATION
from tests.ledgers import CREDITOR, DEBTOR, P, transfer
from tests.partitions import PARTITIONS

RECEIPT = Subscriptions((Subscription("receipt", "file:receipts"),))
LOST = 4
"""Offset of the transfer whose outputs are lost in part."""
RAW = Coordinates(PAYMENTS_RAW, P, LOST)
OPENED = AccountOpened(DEBTOR, None)
GAP = Gap("ledger", P, (LOST,))


def headers_of(source: int) -> Headers:
    return (ORIGIN, str(RAW).encode()), (SOURCE, b"%b:%d:%d" % (LEDGER_TRANSFERS.encode(), P, source))


class Logs:
    """The committed records of a cluster, and where its partitions begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: dict[Target, list[Record]] = {}
        self.beginnings: dict[Target, int] = {}
        self.fails_after: str | None = None  # a topic: once
        monkeypatch.setattr(evidence_module, "read_topics", self._read)
        monkeypatch.setattr(evidence_module, "beginning_offsets", self._begin, raising=False)

    async def _read(
        self, _: object, topics: Sequence[str], on_records: OnRecords, *, start: dict[Target, int]
    ) -> dict[Target, int]:
        for (topic, partition), records in self.records.items():
            if topic not in topics:
                continue
            unread = [one for one in records if one.offset >= start.get((topic, partition), 0)]
            if unread:
                on_records(topic, partition, unread)
            if topic == self.fails_after:
                self.fails_after = None
                raise KafkaUnavailableError("no broker answers")
        return {target: records[-1].offset + 1 for target, records in self.records.items() if target[0] in topics}

    async def _begin(self, _: object, topics: Sequence[str]) -> dict[Target, int]:
        return {(topic, number): self.beginnings.get((topic, number), 0) for topic in topics for number in range(99)}

    def write(self, output: Output, offset: int | None = None) -> None:
        records = self.records.setdefault((output.topic, output.partition), [])
        at = offset if offset is not None else (records[-1].offset + 1 if records else 0)
        records.append(Record(output.topic, output.partition, at, 0, output.key, output.value, output.headers))

    def spoil(self, topic: str, partition: int, headers: Headers = ()) -> None:
        self.write(Output(topic, partition, CREDITOR.encode(), b"{", headers))


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    """An account's opening, and the transfer without any output."""
    logs = Logs(monkeypatch)
    logs.write(Output(LEDGER_POSTINGS, P, DEBTOR.encode(), encode_ledger_event(OPENED), headers_of(0)))
    value = encode_transfer(transfer("p-1"))
    logs.write(Output(LEDGER_TRANSFERS, P, DEBTOR.encode(), value, headers_of(0)), LOST)
    return logs


async def repaired(_: Logs, gap: Gap = GAP) -> list[Mended]:
    return mend(await read(gap), gap)


async def read(gap: Gap) -> Evidence:
    evidence = Evidence("127.0.0.1:1", "ledger", [gap], PARTITIONS, 9)
    await evidence.read()
    return evidence


def mend(evidence: Evidence, gap: Gap) -> list[Mended]:
    subscriptions = History(decode_subscriptions)
    key, value = DEBTOR.encode(), encode_subscriptions(RECEIPT)
    subscriptions.take("", 0, [Record(REFERENCE_SUBSCRIPTIONS, 0, 7, 0, key, value, ())])
    reference = Reference(ReferenceData({}, {}), subscriptions, INSTALLATION, (0,) * PARTITIONS)
    evidence.raise_if_unreadable(gap.partition)
    mender = mender_of("ledger", gap.partition, Sizes(9, 9, PARTITIONS), reference, evidence, 0)
    mender.begin()
    return mended(mender, evidence, gap.inputs())


def outputs() -> list[Output]:
    """What the ledger wrote for the transfer."""
    handler = LedgerHandler(P, 9, {DEBTOR: RECEIPT}, {DEBTOR: "0:7"}, partitions=PARTITIONS, installation=INSTALLATION)
    handler.process(Record(LEDGER_TRANSFERS, P, 0, 0, b"", encode_transfer(OPENED), ()))
    record = Record(LEDGER_TRANSFERS, P, LOST, 0, b"", encode_transfer(transfer("p-1")), ((ORIGIN, str(RAW).encode()),))
    made = handler.process(record)
    assert [output.topic for output in made] == [LEDGER_POSTINGS, EFFECTS_REQUESTS, LEDGER_TRANSFERS]
    return made


def later_request(request: Output, source: int, *headers: tuple[str, bytes]) -> Output:
    return request._replace(headers=(*headers_of(source), *headers))


def topics_of(made: list[Mended]) -> list[str]:
    return [output.topic for one in made for output in one.outputs]


WHOLE = [EFFECTS_REQUESTS, LEDGER_TRANSFERS]
BY_REPAIR = REPAIR, b"repair-1:0"


@pytest.mark.parametrize(
    ("begins", "survivors", "made"),
    [
        (0, [], WHOLE),
        (0, [LOST + 1], WHOLE),
        (8, [LOST - 1], WHOLE),
        (8, [], [LEDGER_TRANSFERS]),
        (8, [LOST], [LEDGER_TRANSFERS]),
        (8, [LOST + 1], [LEDGER_TRANSFERS]),
    ],
)
async def test_a_request_that_may_have_expired_is_not_made_again(
    logs: Logs, begins: int, survivors: list[int], made: list[str]
) -> None:
    """The effect may have been sent. The outbox's mark of it has expired as well."""
    posting, request, _ = outputs()
    logs.write(posting)
    logs.beginnings[EFFECTS_REQUESTS, P] = begins
    logs.write(later_request(request, 0, BY_REPAIR), 8)  # a repair writes requests of any age
    for number, source in enumerate(survivors):
        logs.write(later_request(request._replace(value=other(request)), source), 9 + number)
    assert topics_of(await repaired(logs)) == made


def other(request: Output) -> bytes:
    """A request of another effect."""
    return (request.value or b"").replace(decode_request(request.value or b"").effect_id.encode(), b"f" * 32)


@pytest.mark.parametrize(("begins", "made"), [(0, [LEDGER_POSTINGS, *WHOLE]), (8, [LEDGER_POSTINGS, LEDGER_TRANSFERS])])
async def test_a_result_shows_that_the_request_of_a_lost_posting_has_expired(
    logs: Logs, begins: int, made: list[str]
) -> None:
    _, request, _ = outputs()
    effect_id = decode_request(request.value or b"").effect_id
    value = encode_result(EffectResult(effect_id, EffectState.SENT.value, 0))
    logs.write(Output(EFFECTS_RESULTS, P, effect_id.encode(), value, ((ORIGIN, str(RAW).encode()),)))
    logs.beginnings[EFFECTS_REQUESTS, P] = begins
    assert topics_of(await repaired(logs)) == made


async def test_a_lost_transfer_without_any_output_and_result_asks_for_its_effects(logs: Logs) -> None:
    """Its requests can be sent: the transfer is decided now."""
    logs.beginnings[EFFECTS_REQUESTS, P] = 8
    assert topics_of(await repaired(logs)) == [LEDGER_POSTINGS, *WHOLE]


ANOTHER = (P + 1) % PARTITIONS


@pytest.mark.parametrize("topic", [LEDGER_POSTINGS, LEDGER_ACCOUNTS])
async def test_an_undecodable_record_ends_the_repair_of_its_own_partition_only(logs: Logs, topic: str) -> None:
    logs.spoil(topic, ANOTHER)
    assert topics_of(await repaired(logs)) == [LEDGER_POSTINGS, *WHOLE]
    logs.spoil(topic, P)
    at = logs.records[topic, P][-1].offset
    with pytest.raises(InternalInputError, match=f"{topic}:{P}:{at} cannot be decoded"):
        await repaired(logs)


@pytest.mark.parametrize(
    ("topic", "partition"), [(LEDGER_POSTINGS, P), (EFFECTS_REQUESTS, P), (LEDGER_TRANSFERS, ANOTHER)]
)
async def test_an_undecodable_output_ends_the_repair_of_its_source(logs: Logs, topic: str, partition: int) -> None:
    """A credit leg is on another partition than its source."""
    logs.spoil(topic, partition, headers_of(LOST))
    at = logs.records[topic, partition][-1].offset
    with pytest.raises(InternalInputError, match=f"{topic}:{partition}:{at} cannot be decoded"):
        await repaired(logs)
    assert await repaired(logs, Gap("ledger", ANOTHER, ())) == []


async def test_an_undecodable_input_ends_the_repair_of_its_partition(logs: Logs) -> None:
    logs.spoil(LEDGER_TRANSFERS, P)
    await repaired(logs)
    with pytest.raises(InternalInputError, match=f"{LEDGER_TRANSFERS}:{P}:{LOST + 1} cannot be decoded"):
        await repaired(logs, Gap("ledger", P, (LOST, LOST + 1)))


async def test_evidence_is_read_once_although_a_broker_failed_in_between(logs: Logs) -> None:
    """A posting that is folded twice would double a balance."""
    posting, *_ = outputs()
    logs.write(posting)
    logs.write(Output(LEDGER_POSTINGS, ANOTHER, DEBTOR.encode(), posting.value, headers_of(0)))
    evidence = Evidence("127.0.0.1:1", "ledger", [GAP], PARTITIONS, 9)
    logs.fails_after = LEDGER_POSTINGS
    with pytest.raises(KafkaUnavailableError):
        await evidence.read()
    await evidence.read()
    [balance] = evidence.books[P].accounts[DEBTOR].balances.values()
    assert balance == -transfer("p-1").amount_minor
    assert set(evidence.outputs) == {Coordinates(LEDGER_TRANSFERS, P, LOST)}
    assert len(evidence.outputs[Coordinates(LEDGER_TRANSFERS, P, LOST)]) == 1


async def test_a_command_that_a_later_one_superseded_is_left_and_named(logs: Logs) -> None:
    """The other inputs of its scope are mended."""
    lost = Output(LEDGER_TRANSFERS, P, DEBTOR.encode(), encode_transfer(AccountClosed(DEBTOR)), ())
    logs.write(lost, LOST + 1)
    logs.write(Output(LEDGER_POSTINGS, P, DEBTOR.encode(), encode_ledger_event(OPENED), headers_of(LOST + 2)))
    gap = Gap("ledger", P, (LOST, LOST + 1))
    evidence = await read(gap)
    assert topics_of(mend(evidence, gap)) == [LEDGER_POSTINGS, *WHOLE]
    [(at, why)] = evidence.left.items()
    assert at == Coordinates(LEDGER_TRANSFERS, P, LOST + 1)
    assert f"{LEDGER_TRANSFERS}:{P}:{LOST + 2} has changed {DEBTOR} since" in why
