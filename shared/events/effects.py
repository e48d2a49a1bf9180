"""Side effects: requests by the ledger, their results, and subscriptions to notifications. Pure.

A request is an intent, written in the ledger's own transaction; nothing has been sent yet. Its effect_id is derived
from the origin of the payment, so a replay asks for the same effect again and not for another one.

Invariant: a request keeps the fields of a later version wherever it is passed on: in a result, while it waits, in a
decision, as a dead letter.
"""

from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict, astuple

from shared.events.codec import NO_EXTRA, Extra, decode_fields, decoder, with_extra

EFFECT_ID_BYTES = 16
EVERY_ACCOUNT = "*"
"""The key of subscriptions for every client account."""

FILE_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
DESTINATION_MAX_CHARS = 512


class EffectKind(StrEnum):
    RECEIPT = "receipt"  # to the debtor: debited
    NOTICE = "notice"  # to the creditor: credited
    DECLINE_NOTICE = "decline_notice"  # to the debtor: not done, and why
    EVENT = "event"  # any of the three, to a machine


class Channel(StrEnum):
    """The delivery channel, by the URI scheme of the destination."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    FILE = "file"


class EffectState(StrEnum):
    SENT = "sent"
    FAILED = "failed"  # refused permanently, or given up; in effects.dead-letter
    IN_DOUBT = "in_doubt"  # it may have been sent, and sending it again could repeat it


class EffectFailure(StrEnum):
    """Why an effect is in effects.dead-letter. The `detail` header says more."""

    REFUSED = "refused"  # the destination will never take it
    RETRIES_EXHAUSTED = "retries_exhausted"  # not taken within ONCE_OUTBOX_RETRY_DEADLINE_S
    ABANDONED = "abandoned"  # by an operator
    ENDPOINT_DISABLED = "endpoint_disabled"  # its endpoint failed for days, or an operator disabled it


def leaves_doubt(state: str, reason: str) -> bool:
    """Whether a call may have been taken, by an undecided effect's EffectState and EffectFailure."""
    return state == EffectState.IN_DOUBT or reason == EffectFailure.ABANDONED


class EffectRequest(msgspec.Struct, frozen=True, tag="effect", tag_field="type", omit_defaults=True):
    """One effect to be made: a record of effects.requests, on the partition that posted.

    Attributes:
        amount_minor, currency: by how much the account's balance changed; None for a decline, and 0 without a currency
            where suspense took the account's place.
    """

    effect_id: str  # 32 hex digits, see `effect_id`
    kind: str  # an EffectKind
    event: str  # the reported event: "debit", "credit" or "decline"
    destination: str  # a URI, see `channel_of`
    account: str  # the client account that it concerns
    payment_id: str
    debtor: str
    value_date: str  # business date, YYYY-MM-DD
    creditor: str = ""  # empty for a decline
    amount_minor: int | None = None
    currency: str | None = None
    fee_minor: int = 0  # contained in amount_minor
    reason: str | None = None  # of a decline, a DeclineReason
    reversal: bool = False
    reference: str = ""
    ordered: bool = False  # wait until every earlier effect of this account for this destination is done


class LaterRequest(EffectRequest, frozen=True, tag="effect", tag_field="type", omit_defaults=True):
    """A request by a later version, with fields that this version does not know."""

    more: Extra = NO_EXTRA


class ResolutionAction(StrEnum):
    """An operator's decision on an effect that is in doubt or has failed."""

    CONFIRM = "confirm"  # it was sent
    RESEND = "resend"  # send it (again)
    ABANDON = "abandon"  # do not send it any more


class Resolution(msgspec.Struct, frozen=True, tag="resolution", tag_field="type", omit_defaults=True):
    """An operator's decision: a record of effects.requests, on the effect's partition."""

    effect_id: str
    revision: int  # of the result that the operator saw; a decision on an older one is void
    action: str  # a ResolutionAction
    request: EffectRequest  # the effect, as its result has it
    resends: int = 0  # of that result; its mark in Redis may have expired, likewise `settles_doubt`
    settles_doubt: bool = True  # a call before that result may have been taken


RequestRecord = EffectRequest | Resolution

_encode = msgspec.json.Encoder().encode
_decode_request = decoder(RequestRecord)


def encode_request(record: RequestRecord) -> bytes:
    """Encode a record of effects.requests, or a dead letter."""
    if isinstance(record, Resolution):
        return _encode_holder(record)
    return _encode_later(record) if isinstance(record, LaterRequest) else _encode(record)


def decode_request(value: bytes) -> RequestRecord:
    """Decode a record of effects.requests, or a dead letter; raises msgspec.DecodeError."""
    record: RequestRecord = _decode_request(value)
    if isinstance(record, Resolution):
        return _kept(record, value)
    return record if _encode(record) == value else _later(record, value)


ATTEMPTS_KEPT = 10
ANSWER_MAX_CHARS = 200


class Attempt(msgspec.Struct, frozen=True):
    """One call to a destination, for people."""

    at_ms: int  # when it began, since 1970 UTC
    took_ms: int
    answer: str  # outcome and the beginning of the answer, at most ANSWER_MAX_CHARS characters; never a secret


class EffectResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an effect: a record of effects.results under its effect_id; the last record counts.

    Attributes:
        resends: calls made although an earlier one may have been taken by a destination that knows no keys.
        request: the effect itself while an operator may have to decide on it: failed and in doubt.
        tried: its last calls, at most ATTEMPTS_KEPT, the latest last; empty where they are not known.
    """

    effect_id: str
    state: str  # an EffectState
    at_ms: int  # when it was decided, since 1970 UTC
    attempts: int = 0  # calls made, as far as is known
    revision: int = 1  # 1 for the first result, one more for each later one
    resends: int = 0
    reason: str = ""  # an EffectFailure of a failed one; a sentence for one in doubt
    detail: str = ""  # what the destination said, for people
    request: EffectRequest | None = None
    tried: tuple[Attempt, ...] = ()


_decode_result = decoder(EffectResult)


def encode_result(result: EffectResult) -> bytes:
    """Encode a record of effects.results."""
    return _encode_holder(result)


def decode_result(value: bytes) -> EffectResult:
    """Decode a record of effects.results; raises msgspec.DecodeError."""
    return _kept(_decode_result(value), value)


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect to be retried: a record of effects.waiting under `waiting/<effect_id>`. Times are since 1970 UTC."""

    request: EffectRequest
    source: str  # coordinates of its record in effects.requests
    origin: str  # coordinates of the raw record
    attempts: int  # calls made so far
    first_ms: int  # when it was first processed
    not_before_ms: int  # when it is to be retried
    sequence: int  # order among those of the partition
    revision: int = 0  # as in the last EffectResult; 0 while there is none, likewise `resends`
    resends: int = 0
    doubtful: bool = False  # an earlier call may have been taken, whatever Redis still knows of it
    action: str | None = None  # an operator's decision, a ResolutionAction; None for a request without one
    detail: str = ""  # why the last try failed, for people
    void: str = ""  # the holder of a claim that Redis could not be asked to release: no call was made under it
    tried: tuple[Attempt, ...] = ()  # as in EffectResult
    resends_before: int = 0  # of `resends`, those of the result that an operator's decision names
    under_way: bool = False  # it was claimed when this was written
    settles_doubt: bool = True  # as in Resolution


class Trust(msgspec.Struct, frozen=True, omit_defaults=True):
    """The Redis instance that holds a partition's claims: a record of effects.waiting under `trust/redis`.

    Attributes:
        at_risk, until: number of requests from the committed offset on, below the offset `until`, that may have been
            called with a claim in that Redis only; -1 means no bound, while an owner is at work.
        due_ms: likewise the waiting effects that were due then, milliseconds since 1970 UTC; -1 means no bound.
        due_max: of these, only so many of each lane, the first by time and sequence; 0 means no bound.
        doubt_left, doubt_until: number of requests from the committed offset on, below the offset `doubt_until`, that
            may have been called and whose claims Redis has lost.
    """

    incarnation: str  # of the claims in Redis, new with each rebuild
    told: bool = True  # whether Redis has received all committed results. If not, it must be rebuilt
    at_risk: int = 0
    until: int = 0
    due_ms: int = 0
    doubt_left: int = 0
    doubt_until: int = 0
    due_max: int = 0


TRUST_PREFIX = b"trust/"
encode_trust = msgspec.json.Encoder().encode
decode_trust = decoder(Trust)

WAITING_PREFIX = b"waiting/"
_decode_waiting = decoder(Waiting)


def encode_waiting(waiting: Waiting) -> bytes:
    """Encode a record of effects.waiting."""
    return _encode_holder(waiting)


def decode_waiting(value: bytes) -> Waiting:
    """Decode a record of effects.waiting; raises msgspec.DecodeError."""
    return _kept(_decode_waiting(value), value)


Holder = TypeVar("Holder", Resolution, EffectResult, Waiting)
"""A record with a request in it."""
_KNOWN = frozenset({"type", *EffectRequest.__struct_fields__})


def _later(request: EffectRequest, value: bytes) -> EffectRequest:
    """Return the request with the fields of its JSON that this version does not know."""
    more = {name: raw.copy() for name, raw in decode_fields(value).items() if name not in _KNOWN}
    return LaterRequest(**asdict(request), more=more) if more else request


def _kept(holder: Holder, value: bytes) -> Holder:
    """Return the holder with all fields of its request. Most JSON has no others, which encoding it again shows."""
    request: EffectRequest | None = holder.request
    if request is None or _encode(holder) == value:
        return holder
    return msgspec.structs.replace(holder, request=_later(request, bytes(decode_fields(value)["request"])))


def _encode_later(request: LaterRequest) -> bytes:
    *known, more = astuple(request)
    return with_extra(_encode(EffectRequest(*known)), more, _KNOWN)


def _encode_holder(holder: Holder) -> bytes:
    request = holder.request
    if not isinstance(request, LaterRequest):
        return _encode(holder)
    fields = decode_fields(_encode(holder))
    return _encode({**fields, "request": msgspec.Raw(_encode_later(request))})


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A subscription to notifications."""

    kind: str  # an EffectKind
    destination: str  # a URI, see `channel_of`
    ordered: bool = False  # as in EffectRequest


class Subscriptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All subscriptions of an account: a record of reference.subscriptions, its key the account or `*`."""

    subscriptions: tuple[Subscription, ...]


encode_subscriptions = msgspec.json.Encoder().encode
decode_subscriptions = decoder(Subscriptions)


def effect_id(origin: bytes, kind: str, event: str, destination: str, *, installation: str) -> str:
    """Return the id of an effect: 32 hex digits, the same for every replay. One payment may cause several effects.

    Args:
        origin: coordinates of the payment's raw record, as in the `origin` header.
        installation: its id. Empty for an event of a former version, see `NotifiedBy.effect_ids`.
    """
    named = (installation.encode(),) if installation else ()
    parts = (*named, origin, kind.encode(), event.encode(), destination.encode())
    framed = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return blake2b(framed, digest_size=EFFECT_ID_BYTES).hexdigest()


@lru_cache(maxsize=4096)  # few destinations, many effects
def channel_of(destination: str) -> Channel:
    """Return the channel of a destination: `https://host/path`, `mailto:name@example.org` or `file:name`.

    Raises ValueError for any other form; the message says what to change.
    """
    if len(destination) > DESTINATION_MAX_CHARS or not destination.isprintable() or " " in destination:
        raise ValueError(f"a destination has at most {DESTINATION_MAX_CHARS} printable characters and no space")
    scheme, _, rest = destination.partition(":")
    if scheme in {"http", "https"}:
        parts = urlsplit(destination)
        if not parts.hostname or parts.username or parts.password or parts.fragment:
            raise ValueError(f"{destination}: a webhook's URL has a host, and no user, password or fragment")
        return Channel.WEBHOOK
    if scheme == "mailto":
        local, at, domain = rest.rpartition("@")
        if not (local and at and domain) or any(char in rest for char in ":,;?<>\"'()[]\\%") or "@" in local:
            raise ValueError(f"{destination}: give one plain address, mailto:name@example.org")
        return Channel.EMAIL
    if scheme == "file":
        if not rest or not set(rest) <= FILE_NAME_CHARS:
            raise ValueError(
                f"{destination}: a file's name has lower-case letters, digits, - and _ only: file:receipts"
            )
        return Channel.FILE
    raise ValueError(f"{destination}: a destination begins with https:, http:, mailto: or file:")
