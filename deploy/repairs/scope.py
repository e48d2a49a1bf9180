"""Writing a scope's missing records, as its owner."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self

from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import Mended, Mender, mended
from deploy.repairs.plan import Gap
from shared.eos.crash import CrashPoints
from shared.eos.progress import start_offset
from shared.eos.records import Output
from shared.events.catalogue import EFFECTS_WAITING, LEDGER_BALANCES, PAYMENTS_IDENTITIES, TRANSFORM_PROGRESS
from shared.events.headers import REPAIR, SOURCE, Coordinates
from shared.kafka.runtime.owned import OwnedPartition
from shared.settings import RuntimeSettings

CHANGELOGS: Final = {
    "ingest": PAYMENTS_IDENTITIES,
    "transform": TRANSFORM_PROGRESS,
    "ledger": LEDGER_BALANCES,
    "outbox": EFFECTS_WAITING,
}
NO_CRASHES: Final = CrashPoints("", lambda _: None)
INIT_DEADLINE_S: Final = 60.0


class RepairScope(OwnedPartition, AbstractAsyncContextManager["RepairScope"]):
    """A service's input partition, taken from its owner for a repair. A context; the mender's state must be empty."""

    def __init__(self, gap: Gap, mender: Mender, settings: RuntimeSettings) -> None:
        changelog = CHANGELOGS[gap.service]
        super().__init__(gap.service, gap.topic, gap.partition, changelog, mender.store, settings, NO_CRASHES)
        self._mender = mender

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._producer.discard()

    async def take_over(self, evidence: Evidence) -> None:
        """Fence the owner, restore and correct the state, and read what the owner wrote last; raises EosError."""
        await self._producer.init(INIT_DEADLINE_S)
        recovered = await self._recover()
        self._next_offset = start_offset(recovered.offset, recovered.restored.next_offset, 0)
        await evidence.settle()
        self._mender.begin()

    def mend(self, evidence: Evidence, inputs: Iterable[Coordinates]) -> list[Mended]:
        return mended(self._mender, evidence, inputs)

    def state_records(self) -> int:
        return len(list(self._store.changes()))

    async def write(self, outputs: Sequence[Output]) -> None:
        """Write records and the state's changes in a transaction that keeps the committed offset; raises EosError."""
        last = Coordinates(self._topic, self._partition, max(self._next_offset - 1, 0))
        await self._commit_alone(outputs, self._next_offset, ((SOURCE, last.encode()),))


def numbered(made: Iterable[Mended], repair_id: str, first: int) -> list[Output]:
    """Return the outputs in order, each with the header by which receivers admit it once, numbered from `first`."""
    outputs = [output for one in made for output in one.outputs]
    return [
        output._replace(headers=(*output.headers, (REPAIR, f"{repair_id}:{number}".encode())))
        for number, output in enumerate(outputs, first)
    ]
