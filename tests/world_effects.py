"""A small consistent system with effects of its postings: requests, results, dead letters, and a sink's log."""

from collections import defaultdict
from dataclasses import dataclass

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    Subscription,
    Subscriptions,
    Waiting,
    effect_id,
    encode_request,
    encode_result,
    encode_subscriptions,
    encode_waiting,
)
from shared.events.headers import ORIGIN, SOURCE, Coordinates, header
from shared.events.postings import DEBIT, Decline, NotifiedBy, Posting, decode_ledger_event, encode_ledger_event
from tests.partitions import PARTITIONS
from tests.world import World

AT_MS = 1_767_600_000_000


@dataclass
class EffectTrail:
    """Coordinates of one effect's records; without a dead letter, `letter` is the result's."""

    request: Coordinates
    result: Coordinates
    letter: Coordinates
    effect: EffectRequest

    @property
    def effect_id(self) -> str:
        return self.effect.effect_id


class Effects(World):
    """A system with an outbox and a sink's log."""

    def __init__(
        self, partitions: int = PARTITIONS, raw_from: int | None = 0, by: SubmittedBy | None = OPERATOR
    ) -> None:
        super().__init__(partitions, raw_from, by)
        self.log: list[str] = []
        self._subscribed: defaultdict[Coordinates, tuple[Subscription, ...]] = defaultdict(tuple)
        self.sinks = {"file:receipts": self.log}

    def notify(
        self,
        posted: Coordinates,
        kind: str,
        destination: str,
        state: EffectState = EffectState.SENT,
        *,
        reason: str = "",
        revision: int = 1,
    ) -> EffectTrail:
        """Request an effect of a posting or decline, and decide it; a `file:` sink logs those that are sent."""
        headers = self.at(posted).headers
        origin, source = (Coordinates.decode(header(headers, name) or b"") for name in (ORIGIN, SOURCE))
        self.subscribe(posted, Subscription(kind, destination))
        effect = request_of(decode_ledger_event(self.at(posted).value or b""), origin, kind, destination)
        request = self.append(
            catalogue.EFFECTS_REQUESTS, posted.partition, encode_request(effect), origin=origin, source=source
        )
        self.committed["outbox"][posted.partition] = request.offset + 1
        result = letter = self.decide(effect, posted.partition, state, reason=reason, revision=revision)
        if state == EffectState.FAILED:
            letter = self.append(catalogue.EFFECTS_DEAD_LETTER, posted.partition, encode_request(effect))
        elif state == EffectState.SENT and destination == "file:receipts":
            self.log.append(effect.effect_id)
        return EffectTrail(request, result, letter, effect)

    def subscribe(self, posted: Coordinates, subscription: Subscription) -> None:
        """Add a subscription to those that were in force for a posting or decline."""
        event = decode_ledger_event(self.at(posted).value or b"")
        assert isinstance(event, Posting | Decline)
        account = event.creditor if isinstance(event, Posting) and event.leg != DEBIT else event.debtor
        if "@" in account:
            return
        self._subscribed[posted] += (subscription,)
        value = encode_subscriptions(Subscriptions(self._subscribed[posted]))
        at = self.append(catalogue.REFERENCE_SUBSCRIPTIONS, 0, value, account.encode())
        named = msgspec.structs.replace(event, notified_by=NotifiedBy(f"0:{at.offset}", None))
        self.change(posted, encode_ledger_event(named))

    def decide(
        self,
        effect: EffectRequest,
        partition: int,
        state: str,
        *,
        reason: str = "",
        revision: int = 1,
        resends: int = 0,
    ) -> Coordinates:
        """Write a result."""
        result = EffectResult(effect.effect_id, state, AT_MS, 1, revision, resends, reason)
        key = effect.effect_id.encode()
        return self.append(catalogue.EFFECTS_RESULTS, partition, encode_result(result), key=key)

    def wait(self, effect: EffectRequest, partition: int) -> Coordinates:
        """Write an effect that waits for a retry."""
        value = encode_waiting(Waiting(effect, "effects.requests:0:0", "payments.raw:0:0", 1, AT_MS, AT_MS, 1))
        key = b"waiting/" + effect.effect_id.encode()
        return self.append(catalogue.EFFECTS_WAITING, partition, value, key=key)


def request_of(event: object, origin: Coordinates, kind: str, destination: str) -> EffectRequest:
    """The request for an event, written down by hand."""
    if isinstance(event, Decline):
        return EffectRequest(
            effect_id(origin.encode(), kind, "decline", destination, installation=""),
            kind,
            "decline",
            destination,
            event.debtor,
            event.payment_id,
            event.debtor,
            event.value_date,
            reason=event.reason,
            reversal=event.reversal,
        )
    assert isinstance(event, Posting)
    account = event.debtor if event.leg == DEBIT else event.creditor
    changed = [entry for entry in event.entries if entry.account == account]
    return EffectRequest(
        effect_id(origin.encode(), kind, event.leg, destination, installation=""),
        kind,
        event.leg,
        destination,
        account,
        event.payment_id,
        event.debtor,
        event.value_date,
        event.creditor,
        amount_minor=changed[0].amount_minor if changed else 0,
        currency=changed[0].currency if changed else "CZK",
        fee_minor=event.fee_minor,
        reversal=event.reversal,
        reference=event.reference,
    )
