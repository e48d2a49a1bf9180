"""The effects that an event asks for: one request for each matching subscription. Pure.

A request is an intent in the ledger's own transaction: if that aborts, no notification is sent. House accounts get no
notifications.
"""

from collections.abc import Mapping

from shared.events.effects import EVERY_ACCOUNT, EffectKind, EffectRequest, Subscription, Subscriptions, effect_id
from shared.events.postings import DEBIT, Decline, Entry, Posting

DECLINE = "decline"


def requests_for(
    event: Posting | Decline, account: str, origin: bytes, subscriptions: Mapping[str, Subscriptions]
) -> list[EffectRequest]:
    """Return the effects to be made for an event.

    Args:
        account: that acted: the debtor, or the creditor of a credit leg.
        origin: coordinates of the payment's raw record; the effect_ids are derived from it.
        subscriptions: by account, or `*`.
    """
    groups = [group for key in (account, EVERY_ACCOUNT) if (group := subscriptions.get(key)) is not None]
    if not groups or "@" in account:
        return []
    changed = None if isinstance(event, Decline) else _changed(event, account)
    kinds = _kinds(event, changed)
    chosen: dict[tuple[str, str], Subscription] = {}
    for one in (one for group in groups for one in group.subscriptions if one.kind in kinds):
        chosen.setdefault((one.kind, one.destination), one)
    return [_request(event, changed, account, origin, one) for one in chosen.values()]


def _changed(posting: Posting, account: str) -> Entry | None:
    """Return the entry that changed the account's balance; None where suspense took its place."""
    return next((entry for entry in posting.entries if entry.account == account), None)


def _kinds(event: Posting | Decline, changed: Entry | None) -> tuple[str, ...]:
    if isinstance(event, Decline):
        return EffectKind.DECLINE_NOTICE.value, EffectKind.EVENT.value
    if changed is None:
        return (EffectKind.EVENT.value,)
    kind = EffectKind.RECEIPT if event.leg == DEBIT else EffectKind.NOTICE
    return kind.value, EffectKind.EVENT.value


def _request(
    event: Posting | Decline, changed: Entry | None, account: str, origin: bytes, subscription: Subscription
) -> EffectRequest:
    kind, destination = subscription.kind, subscription.destination
    if isinstance(event, Decline):
        name, creditor, amount_minor, fee_minor, reason, reference = DECLINE, "", None, 0, event.reason, ""
    else:
        name, creditor, reason, reference = event.leg, event.creditor, None, event.reference
        amount_minor, fee_minor = (changed.amount_minor if changed else 0), event.fee_minor
    return EffectRequest(
        effect_id(origin, kind, name, destination),
        kind,
        name,
        destination,
        account,
        event.payment_id,
        event.debtor,
        event.value_date,
        creditor,
        amount_minor,
        changed.currency if changed else None,
        fee_minor,
        reason,
        event.reversal,
        reference,
        subscription.ordered,
    )
