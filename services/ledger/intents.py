"""Which effects an event asks for: one request for each subscription that it concerns. Pure.

A request is an intent in the ledger's own transaction: if that aborts, nobody is told anything. House accounts are told
nothing.
"""

from collections.abc import Mapping

import msgspec

from shared.events.effects import EVERY_ACCOUNT, EffectKind, EffectRequest, Subscription, Subscriptions, effect_id
from shared.events.postings import DEBIT, Decline, Posting

DECLINE = "decline"


def requests_for(
    event: Posting | Decline, account: str, origin: bytes, subscriptions: Mapping[str, Subscriptions]
) -> list[EffectRequest]:
    """The effects to be made for an event.

    Args:
        event: what was posted or declined.
        account: that acted: the debtor, or the creditor of a credit leg.
        origin: coordinates of the payment's raw record; it makes the effect_ids.
        subscriptions: by account, or `*`.
    """
    groups = [group for key in (account, EVERY_ACCOUNT) if (group := subscriptions.get(key)) is not None]
    if not groups or "@" in account:
        return []
    kinds = _kinds(event, account)
    chosen: dict[tuple[str, str], Subscription] = {}
    for group in groups:
        for subscription in group.subscriptions:
            if subscription.kind in kinds:
                chosen.setdefault((subscription.kind, subscription.destination), subscription)
    return [_request(event, account, origin, subscription) for subscription in chosen.values()]


def _kinds(event: Posting | Decline, account: str) -> tuple[str, ...]:
    if isinstance(event, Decline):
        return EffectKind.DECLINE_NOTICE.value, EffectKind.EVENT.value
    if not any(entry.account == account for entry in event.entries):
        return (EffectKind.EVENT.value,)  # suspense took its place
    kind = EffectKind.RECEIPT if event.leg == DEBIT else EffectKind.NOTICE
    return kind.value, EffectKind.EVENT.value


def _request(event: Posting | Decline, account: str, origin: bytes, subscription: Subscription) -> EffectRequest:
    name = DECLINE if isinstance(event, Decline) else event.leg
    request = EffectRequest(
        effect_id(origin, subscription.kind, name, subscription.destination),
        subscription.kind,
        name,
        subscription.destination,
        account,
        event.payment_id,
        event.debtor,
        event.value_date,
        reversal=event.reversal,
        ordered=subscription.ordered,
    )
    if isinstance(event, Decline):
        return msgspec.structs.replace(request, reason=event.reason)
    changed = next((entry for entry in event.entries if entry.account == account), None)
    return msgspec.structs.replace(
        request,
        creditor=event.creditor,
        amount_minor=changed.amount_minor if changed else 0,
        currency=changed.currency if changed else None,
        fee_minor=event.fee_minor,
        reference=event.reference,
    )
