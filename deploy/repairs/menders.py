"""Making missing records again, with each service's own handler. An output that exists is not made again."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import msgspec

from deploy.repairs.evidence import Evidence
from deploy.repairs.plan import Gap
from deploy.repairs.reference import Reference
from services.ingest.service import IngestHandler
from services.ledger.repair import LedgerRepair, SupersededError
from services.outbox.domain import Done
from services.outbox.flights import outputs_of
from services.outbox.intake import job_of
from services.outbox.waiting import WaitingStore
from services.transform.service import TransformHandler
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import UnsafeSettingsError
from shared.eos.records import Output, Record
from shared.eos.store import Store, Stores, Table
from shared.eos.window import Window
from shared.events import catalogue
from shared.events.catalogue import EFFECTS_WAITING, LEDGER_BALANCES, PAYMENTS_IDENTITIES, TRANSFORM_PROGRESS
from shared.events.effects import (
    TRUST_PREFIX,
    EffectRequest,
    EffectResult,
    EffectState,
    Resolution,
    Trust,
    decode_request,
    decode_result,
    decode_trust,
    encode_trust,
)
from shared.events.headers import DETAIL, REASON, REPAIR, SOURCE, Coordinates, header
from shared.events.postings import decode_ledger_event
from shared.events.transfers import CreditLeg, decode_transfer
from shared.kafka.admin.groups import Described, Groups
from shared.kafka.client.access import access
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.errors import unavailable
from shared.kafka.runtime.scope import TransactionScope
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.settings import RuntimeSettings

IN_DOUBT = "its result was lost: whether it was sent is not known"


class Sizes(NamedTuple):
    """Sizes of the services' states and topics, as their settings have them."""

    identity_window: int
    reversal_window: int
    partitions: int  # of each topic


class Mender(Protocol):
    """A scope's state, and the maker of its missing outputs."""

    @property
    def store(self) -> Store: ...

    def begin(self) -> None:
        """Correct the restored state. Raises EosError or InternalInputError if it cannot be used."""

    def mend(self, record: Record, existing: list[Record]) -> list[Output]:
        """Return the outputs of an input record; those that exist may be among them.

        Raises InternalInputError if what exists does not follow from the record, SupersededError if what is missing
        would undo something later.
        """

    def follow(self) -> list[Output]:
        """Return the records that follow from the state, and are missing; each has its source in its headers."""


class _Plain:
    """A service with one output for each input record."""

    def __init__(self, handler: IngestHandler | TransformHandler) -> None:
        self._handler = handler

    @property
    def store(self) -> Store:
        return self._handler.store

    def begin(self) -> None:
        if isinstance(self._handler, IngestHandler):
            _raise_if_too_small(self._handler.store, "ONCE_INGEST_WINDOW")

    def mend(self, record: Record, existing: list[Record]) -> list[Output]:
        outputs = self._handler.process(record)  # the state may lack the record as well
        return [] if existing else outputs

    def follow(self) -> list[Output]:
        return []


class _Ledger:
    def __init__(self, handler: LedgerRepair) -> None:
        self._handler = handler

    @property
    def store(self) -> Store:
        return self._handler.store

    def begin(self) -> None:
        _raise_if_too_small(self._handler.payments, "ONCE_LEDGER_REVERSAL_WINDOW")
        self._handler.correct()

    def mend(self, record: Record, existing: list[Record]) -> list[Output]:
        posted = [one.value for one in existing if one.topic == catalogue.LEDGER_POSTINGS]
        sent = [one.value for one in existing if one.topic == catalogue.LEDGER_TRANSFERS]
        leg = decode_transfer(sent[0] or b"") if sent else None
        asked = [decode_request(one.value or b"") for one in existing if one.topic == catalogue.EFFECTS_REQUESTS]
        return self._handler.mend(
            record,
            decode_ledger_event(posted[0] or b"") if posted else None,
            leg if isinstance(leg, CreditLeg) else None,
            [one for one in asked if isinstance(one, EffectRequest)],
        )

    def follow(self) -> list[Output]:
        return self._handler.follow()


def _raise_if_too_small(window: Window, setting: str) -> None:
    """Raise UnsafeSettingsError if the service remembers more than the setting allows: the repair would forget it."""
    if window.excess:
        raise UnsafeSettingsError(
            f"the service's changelog has {window.excess} entries more than {setting}={window.capacity}: set it to the "
            f"value that the service has. If that was lowered, repair when the service has deleted them: "
            f"{window.TOMBSTONES_MAX:,} with each transaction that adds one"
        )


class _Outbox:
    """The outbox: nothing is sent. Where no dead letter shows that an effect failed, a person has to decide."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._waiting = WaitingStore()
        self._trust: Table[Trust] = Table(TRUST_PREFIX, encode_trust, decode_trust, lambda trust: trust)
        self._store = Stores(self._waiting, self._trust)

    @property
    def store(self) -> Store:
        return self._store

    def begin(self) -> None:
        pass

    def mend(self, record: Record, existing: list[Record]) -> list[Output]:
        request = decode_request(record.value or b"")
        if isinstance(request, Resolution) or request.effect_id in self._waiting:
            return []
        for name, trust in list(self._trust.items()):
            # Redis does not know this result: the next owner rebuilds it
            self._trust.put(name, msgspec.structs.replace(trust, told=False))
        job = job_of(record, lambda _: False, self._now_ms, doubtful=True)
        return outputs_of(Done(job, self._result(request, existing)), record.partition)

    def follow(self) -> list[Output]:
        return []

    def _result(self, request: EffectRequest, existing: list[Record]) -> EffectResult:
        for record in existing:
            if record.topic == catalogue.EFFECTS_RESULTS and record.value is not None:
                return decode_result(record.value)
        for record in existing:
            reason, detail = header(record.headers, REASON) or b"", header(record.headers, DETAIL) or b""
            failed = EffectState.FAILED.value
            return EffectResult(
                request.effect_id, failed, self._now_ms, reason=reason.decode(), detail=detail.decode(), request=request
            )
        doubt = EffectState.IN_DOUBT.value
        return EffectResult(request.effect_id, doubt, self._now_ms, detail=IN_DOUBT, request=request)


def mender_of(
    service: str, partition: int, sizes: Sizes, reference: Reference, evidence: Evidence, now_ms: int
) -> Mender:
    """Return a mender whose state is empty."""
    match service:
        case "ingest":
            return _Plain(IngestHandler(partition, sizes.identity_window, partitions=sizes.partitions))
        case "transform":
            return _Plain(TransformHandler(partition, reference.data, partitions=sizes.partitions))
        case "ledger":
            books = evidence.books[partition]
            subscribed = reference.subscriptions
            return _Ledger(
                LedgerRepair(
                    partition,
                    sizes.reversal_window,
                    subscribed.values,
                    books,
                    partitions=sizes.partitions,
                    installation=reference.installation,
                    raw_from=reference.raw_from[partition],
                    places=subscribed.places,
                    versions=subscribed.versions,
                )
            )
        case _:
            return _Outbox(now_ms)


class Mended(NamedTuple):
    source: Coordinates
    outputs: list[Output]


def mended(mender: Mender, evidence: Evidence, inputs: Iterable[Coordinates]) -> list[Mended]:
    """Make the missing outputs of some input records, in their order; records without any are left out.

    Requests that may have expired are left out too, and inputs that must be left as they are, which the evidence notes.
    Then come records that follow from the state, and are missing.

    Raises InternalInputError if an input record's outputs do not follow from it.
    """
    made = []
    for at in inputs:
        record = evidence.inputs.get(at)
        if record is None:
            continue
        existing = evidence.outputs.get(at, [])
        known = {_name(one) for one in existing}
        try:
            outputs = mender.mend(record, existing)
        except SupersededError as error:
            evidence.left[at] = str(error)
            continue
        missing = [
            output
            for output in outputs
            if (name := _name(output)) not in known and not evidence.may_have_expired(at, *name)
        ]
        if missing:
            made.append(Mended(at, missing))
    following = mender.follow()
    return made + [Mended(Coordinates.decode(header(one.headers, SOURCE) or b""), [one]) for one in following]


def _name(output: Output | Record) -> tuple[str, str]:
    """The key that distinguishes the outputs of one input record."""
    if output.topic != catalogue.EFFECTS_REQUESTS:
        return output.topic, ""
    return output.topic, decode_request(output.value or b"").effect_id


CHANGELOGS: Final = {
    "ingest": PAYMENTS_IDENTITIES,
    "transform": TRANSFORM_PROGRESS,
    "ledger": LEDGER_BALANCES,
    "outbox": EFFECTS_WAITING,
}


class RepairScope(AbstractAsyncContextManager["RepairScope"]):
    """A service's input partition, taken from its owner for a repair. A context; the mender's state must be empty.

    The repair works under the owner's transactional.id, which fences the owner. It commits offsets as the owner's
    member, which the group refuses if the partition has another owner since.
    """

    def __init__(self, gap: Gap, mender: Mender, settings: RuntimeSettings) -> None:
        self._gap = gap
        self._settings = settings
        self._mender = mender
        self._task = Task(gap.service, (gap.topic, gap.partition), CHANGELOGS[gap.service], mender.store)
        self._scope: TransactionScope | None = None

    async def __aenter__(self) -> Self:
        owner = await self._owner()
        member = GroupMember(self._gap.service)
        instance = f"{self._gap.service}-repair"
        if owner is not None:
            member = GroupMember(self._gap.service, owner.member_id, owner.epoch)
            instance = owner.client_id
        for_partition = f"{self._gap.service}-{self._gap.topic}-{self._gap.partition}"
        transactional_id = for_partition if self._gap.service == "outbox" else instance
        own = [topic.name for topic in catalogue.TOPICS if self._gap.service in topic.writers]
        self._scope = TransactionScope(
            self._gap.service,
            self._gap.topic,
            transactional_id,
            self._settings,
            NO_CRASHES,
            lambda: member,
            outputs=[*own, catalogue.OPERATIONS_REPAIRS],
            version_max=1,
        )
        return self

    async def _owner(self) -> Described | None:
        try:
            async with Brokers(access(self._settings), client_id="once-repair") as brokers:
                view = await brokers.view([])
                members = await Groups(brokers).members(self._gap.service, view.brokers)
        except BrokerSilentError as error:
            raise unavailable(access(self._settings), f"the partition's owner cannot be found: {error}") from error
        return next((one for one in members if self._task.target in one.targets), None)

    @property
    def scope(self) -> TransactionScope:
        if self._scope is None:
            raise AssertionError("the context was not entered")
        return self._scope

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.scope.close()

    async def take_over(self, evidence: Evidence) -> None:
        """Fence the owner, restore and correct the state, and read what the owner wrote last.

        Raises EosError, and InternalInputError if a record that the repair needs cannot be decoded.
        """
        await self.scope.init()
        torn = await self.scope.recover(self._task)
        if torn is not None:
            await self.scope.complete(self._task, torn)
        await evidence.settle()
        evidence.raise_if_unreadable(self._gap.partition)
        self._mender.begin()

    def mend(self, evidence: Evidence, inputs: Iterable[Coordinates]) -> list[Mended]:
        return mended(self._mender, evidence, inputs)

    def state_records(self) -> int:
        return len(list(self._mender.store.changes()))

    async def write(self, outputs: Sequence[Output]) -> None:
        """Write records and the state's changes in a transaction that keeps the committed offset; raises EosError."""
        next_offset = self._task.next_offset
        last = Coordinates(*self._task.target, max(next_offset - 1, 0))
        headers = ((SOURCE, last.encode()),)
        written = [output if output.headers else output._replace(headers=headers) for output in outputs]
        await self.scope.commit_alone(self._task, written, next_offset, headers)


def numbered(made: Iterable[Mended], repair_id: str, first: int) -> list[Output]:
    """Return the outputs in order, each with the header by which receivers admit it once, numbered from `first`."""
    outputs = [output for one in made for output in one.outputs]
    return [
        output._replace(headers=(*output.headers, (REPAIR, f"{repair_id}:{number}".encode())))
        for number, output in enumerate(outputs, first)
    ]
