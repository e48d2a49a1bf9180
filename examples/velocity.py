"""velocity: an alert for each payment that follows three others of its debtor within a minute, exactly once."""

import sys
from contextlib import AsyncExitStack

import msgspec

from shared.eos.records import Output, Record
from shared.eos.store import Table
from shared.events.catalogue import PAYMENTS_ACCEPTED
from shared.events.payments import AcceptedPayment, decode_accepted
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import RuntimeSettings

ALERTS, RECENT = "velocity.alerts", "velocity.recent"
PAYMENTS_MAX, WINDOW_MS = 3, 60_000


class Velocity:
    """The work on one partition. Its state is the times of the last payments of each debtor."""

    def __init__(self) -> None:
        self.store = Table(b"debtor/", msgspec.json.encode, msgspec.json.Decoder(list[int]).decode)

    def process(self, record: Record) -> list[Output]:
        payment, _ = decode_accepted(record.value or b"")
        if not isinstance(payment, AcceptedPayment) or "@" in payment.debtor:
            return []
        at_ms = record.timestamp_ms if payment.received_at_ms is None else payment.received_at_ms
        recent = self.store.get(payment.debtor) or []
        self.store.put(payment.debtor, [*recent, at_ms][-PAYMENTS_MAX:])
        if len(recent) < PAYMENTS_MAX or at_ms - recent[0] >= WINDOW_MS:
            return []
        alert = {"payment_id": payment.payment_id, "since_ms": recent[0], "at_ms": at_ms}
        return [record.output(ALERTS, payment.debtor.encode(), msgspec.json.encode(alert))]


async def build(_settings: RuntimeSettings, _stack: AsyncExitStack) -> Pipeline:
    return Pipeline(
        service="velocity",
        topic=PAYMENTS_ACCEPTED,
        outputs=(ALERTS,),
        changelog=RECENT,
        handler=lambda _partition: Velocity(),
    )


if __name__ == "__main__":
    sys.exit(run_service("velocity", RuntimeSettings, build, [PAYMENTS_ACCEPTED, ALERTS, RECENT]))
