"""Golden bytes of effects (add, never edit), effect ids that a replay derives again, and destinations."""

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.events.effects import (
    DESTINATION_MAX_CHARS,
    Attempt,
    Channel,
    EffectFailure,
    EffectKind,
    EffectRequest,
    EffectResult,
    EffectState,
    LaterRequest,
    Resolution,
    ResolutionAction,
    Subscription,
    Subscriptions,
    Trust,
    Waiting,
    channel_of,
    decode_request,
    decode_result,
    decode_subscriptions,
    decode_trust,
    decode_waiting,
    effect_id,
    encode_request,
    encode_result,
    encode_subscriptions,
    encode_trust,
    encode_waiting,
)
from shared.events.transfers import DeclineReason
from tests.installation import INSTALLATION

ORIGIN = b"payments.raw:3:1207"
ID = "842acd040836c8470bc1565309804dca"
RECEIPT = EffectRequest(
    ID,
    EffectKind.RECEIPT,
    "debit",
    "file:receipts",
    "2378",
    "171812",
    "2378",
    "1993-01-01",
    "cash@3",
    -70350,
    "CZK",
    350,
)
RECEIPT_BYTES = (
    b'{"type":"effect","effect_id":"' + ID.encode() + b'","kind":"receipt","event":"debit",'
    b'"destination":"file:receipts","account":"2378","payment_id":"171812","debtor":"2378",'
    b'"value_date":"1993-01-01","creditor":"cash@3","amount_minor":-70350,"currency":"CZK","fee_minor":350}'
)
DECLINE_NOTICE = EffectRequest(
    ID,
    EffectKind.DECLINE_NOTICE,
    "decline",
    "mailto:eva@example.org",
    "2378",
    "r-1",
    "2378",
    "1993-01-02",
    reason=DeclineReason.ORIGINAL_NOT_FOUND,
    reversal=True,
    reference="rent",
    ordered=True,
)


@pytest.mark.parametrize(
    ("event", "value", "encode", "decode"),
    [
        (RECEIPT, RECEIPT_BYTES, encode_request, decode_request),
        (
            DECLINE_NOTICE,
            (
                b'{"type":"effect","effect_id":"' + ID.encode() + b'","kind":"decline_notice","event":"decline",'
                b'"destination":"mailto:eva@example.org","account":"2378","payment_id":"r-1","debtor":"2378",'
                b'"value_date":"1993-01-02","reason":"original_not_found","reversal":true,"reference":"rent",'
                b'"ordered":true}'
            ),
            encode_request,
            decode_request,
        ),
        (
            Resolution(ID, 2, ResolutionAction.RESEND, RECEIPT),
            (
                b'{"type":"resolution","effect_id":"' + ID.encode() + b'","revision":2,"action":"resend",'
                b'"request":' + RECEIPT_BYTES + b"}"
            ),
            encode_request,
            decode_request,
        ),
        (
            EffectResult(ID, EffectState.SENT, 1_700_000_000_000, 1, detail="200 OK"),
            (
                b'{"effect_id":"' + ID.encode() + b'","state":"sent","at_ms":1700000000000,"attempts":1,'
                b'"detail":"200 OK"}'
            ),
            encode_result,
            decode_result,
        ),
        (
            EffectResult(
                ID, EffectState.FAILED, 1_700_000_000_000, 3, 2, 1, EffectFailure.RETRIES_EXHAUSTED, "503", RECEIPT
            ),
            (
                b'{"effect_id":"' + ID.encode() + b'","state":"failed","at_ms":1700000000000,"attempts":3,'
                b'"revision":2,"resends":1,"reason":"retries_exhausted","detail":"503","request":'
                + RECEIPT_BYTES
                + b"}"
            ),
            encode_result,
            decode_result,
        ),
        (
            Waiting(RECEIPT, "effects.requests:3:9", ORIGIN.decode(), 2, 1_700_000_000_000, 1_700_000_002_000, 9),
            (
                b'{"request":' + RECEIPT_BYTES + b',"source":"effects.requests:3:9","origin":"payments.raw:3:1207",'
                b'"attempts":2,"first_ms":1700000000000,"not_before_ms":1700000002000,"sequence":9}'
            ),
            encode_waiting,
            decode_waiting,
        ),
        (
            Waiting(RECEIPT, "a:0:1", "b:0:2", 2, 3, 4, 5, 6, 7, doubtful=True, action="resend", detail="503"),
            (
                b'{"request":' + RECEIPT_BYTES + b',"source":"a:0:1","origin":"b:0:2","attempts":2,"first_ms":3,'
                b'"not_before_ms":4,"sequence":5,"revision":6,"resends":7,"doubtful":true,"action":"resend",'
                b'"detail":"503"}'
            ),
            encode_waiting,
            decode_waiting,
        ),
        (
            EffectResult(
                ID, EffectState.SENT, 9, 2, tried=(Attempt(5, 30, "retriable: 503"), Attempt(7, 2, "delivered"))
            ),
            (
                b'{"effect_id":"' + ID.encode() + b'","state":"sent","at_ms":9,"attempts":2,"tried":['
                b'{"at_ms":5,"took_ms":30,"answer":"retriable: 503"},{"at_ms":7,"took_ms":2,"answer":"delivered"}]}'
            ),
            encode_result,
            decode_result,
        ),
        (
            Trust("4f2a", told=False, at_risk=200, until=-1, due_ms=-1, doubt_left=17, doubt_until=4711),
            (
                b'{"incarnation":"4f2a","told":false,"at_risk":200,"until":-1,"due_ms":-1,'
                b'"doubt_left":17,"doubt_until":4711}'
            ),
            encode_trust,
            decode_trust,
        ),
        (
            Subscriptions(
                (Subscription("receipt", "file:receipts"), Subscription("event", "https://a.example/h", True))
            ),
            (
                b'{"subscriptions":[{"kind":"receipt","destination":"file:receipts"},'
                b'{"kind":"event","destination":"https://a.example/h","ordered":true}]}'
            ),
            encode_subscriptions,
            decode_subscriptions,
        ),
        (Subscriptions(()), b'{"subscriptions":[]}', encode_subscriptions, decode_subscriptions),
    ],
)
def test_golden_bytes(
    event: object, value: bytes, encode: Callable[[object], bytes], decode: Callable[[bytes], object]
) -> None:
    assert encode(event) == value
    assert decode(value) == event


LATER = b',"memo":{"by":"eva","lines":[1,null]},"more":false}'
LATER_BYTES = RECEIPT_BYTES[:-1] + LATER
HOLDERS = [
    (
        decode_request,
        encode_request,
        b'{"type":"resolution","effect_id":"a","revision":1,"action":"resend","request":%b}',
    ),
    (decode_result, encode_result, b'{"effect_id":"a","state":"failed","at_ms":1,"request":%b}'),
    (
        decode_waiting,
        encode_waiting,
        b'{"request":%b,"source":"a:0:1","origin":"b:0:2","attempts":1,"first_ms":2,"not_before_ms":3,"sequence":4}',
    ),
]


def test_a_request_keeps_the_fields_of_a_later_version() -> None:
    later = decode_request(LATER_BYTES)
    assert isinstance(later, LaterRequest)
    assert encode_request(later) == LATER_BYTES
    assert EffectRequest(*msgspec.structs.astuple(later)[:-1]) == RECEIPT
    assert decode_request(encode_request(later)) == later


@pytest.mark.parametrize(("decode", "encode", "holder"), HOLDERS)
def test_a_record_keeps_the_fields_of_its_request(
    decode: Callable[[bytes], Resolution | EffectResult | Waiting], encode: Callable[[object], bytes], holder: bytes
) -> None:
    found = decode(holder % LATER_BYTES)
    assert found.request == decode_request(LATER_BYTES)
    assert encode(found) == holder % LATER_BYTES
    assert type(decode(holder % RECEIPT_BYTES).request) is EffectRequest


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        *((decode, holder % RECEIPT_BYTES) for decode, _, holder in HOLDERS),
        (decode_result, b'{"effect_id":"a","state":"sent","at_ms":1}'),
    ],
)
def test_fields_of_a_later_version_are_accepted(decode: Callable[[bytes], object], value: bytes) -> None:
    assert decode(value[:-1] + LATER) == decode(value)


def test_json_in_another_form_is_the_same_request() -> None:
    spaced = msgspec.json.format(RECEIPT_BYTES, indent=1)
    assert decode_request(spaced) == RECEIPT
    assert type(decode_request(spaced)) is EffectRequest
    twice = RECEIPT_BYTES.replace(b'"fee_minor":350', b'"fee_minor":1,"fee_minor":350')
    assert type(decode_request(twice)) is EffectRequest


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in {"type", *EffectRequest.__struct_fields__}),
        st.recursive(st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=5), st.lists, max_leaves=4),
        max_size=4,
    )
)
def test_any_further_fields_are_kept(fields: dict[str, object]) -> None:
    known = msgspec.json.decode(RECEIPT_BYTES)
    value = msgspec.json.encode({**known, **fields})
    request = decode_request(value)
    assert encode_request(request) == value
    assert isinstance(request, EffectRequest)
    result = EffectResult(ID, EffectState.FAILED, 1, request=request)
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (decode_request, RECEIPT_BYTES.replace(b'"type":"effect"', b'"type":"rumour"')),
        (decode_request, b""),
        (decode_subscriptions, b'{"subscriptions":[],"more":1}'),
        (decode_subscriptions, b'{"subscriptions":[{"kind":"receipt"}]}'),
        (decode_subscriptions, b'{"subscriptions":[{"kind":"receipt","destination":"file:a","channel":"file"}]}'),
    ],
)
def test_bytes_that_were_never_written_are_refused(decode: Callable[[bytes], object], value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(value)


def test_omitted_fields_have_their_defaults() -> None:
    request = decode_request(RECEIPT_BYTES.replace(b',"fee_minor":350', b""))
    assert isinstance(request, EffectRequest)
    assert (request.fee_minor, request.reversal, request.ordered) == (0, False, False)
    result = decode_result(b'{"effect_id":"a","state":"sent","at_ms":1}')
    assert (result.attempts, result.revision, result.resends) == (0, 1, 0)
    waiting = decode_waiting(
        b'{"request":' + RECEIPT_BYTES + b',"source":"","origin":"","attempts":0,"first_ms":0,"not_before_ms":0,'
        b'"sequence":0}'
    )
    assert (waiting.revision, waiting.resends, waiting.doubtful) == (0, 0, False)
    assert decode_trust(b'{"incarnation":"","under_way":0}').doubt_left == 0


def test_golden_effect_id() -> None:
    framed = b"19:payments.raw:3:12077:receipt5:debit13:file:receipts"
    assert effect_id(ORIGIN, "receipt", "debit", "file:receipts", installation="") == ID
    assert blake2b(framed, digest_size=16).hexdigest() == ID


def test_golden_effect_id_of_an_installation() -> None:
    framed = b"32:3f2a9c0de1b84c7d8a6655f0c4e21b9719:payments.raw:3:12077:receipt5:debit13:file:receipts"
    identity = effect_id(ORIGIN, "receipt", "debit", "file:receipts", installation=INSTALLATION)
    assert identity == blake2b(framed, digest_size=16).hexdigest() == "bf3db6ad782707825ce98fcbd5521544"


@pytest.mark.parametrize(
    "parts",
    [
        (b"payments.raw:3:1208", "receipt", "debit", "file:receipts"),
        (ORIGIN, "event", "debit", "file:receipts"),
        (ORIGIN, "receipt", "credit", "file:receipts"),
        (ORIGIN, "receipt", "debit", "file:others"),
        (ORIGIN, "receiptd", "ebit", "file:receipts"),
    ],
)
def test_every_part_changes_the_effect_id(parts: tuple[bytes, str, str, str]) -> None:
    assert effect_id(*parts, installation="") != ID


@pytest.mark.parametrize("installation", [INSTALLATION, "a", "19:payments.raw:3:1207"])
def test_installations_share_no_effect_id(installation: str) -> None:
    own = effect_id(ORIGIN, "receipt", "debit", "file:receipts", installation=installation)
    others = {effect_id(ORIGIN, "receipt", "debit", "file:receipts", installation=i) for i in ("", installation + "0")}
    assert own not in others


@given(st.lists(st.tuples(st.binary(max_size=4), *[st.text("1:a", max_size=4)] * 3), unique=True, max_size=20))
def test_no_two_effects_share_an_id(parts: list[tuple[bytes, str, str, str]]) -> None:
    ids = {effect_id(*each, installation=installation) for each in parts for installation in ("", "1", "1:1")}
    assert len(ids) == 3 * len(parts)


@pytest.mark.parametrize(
    ("destination", "channel"),
    [
        ("https://example.org/hook", Channel.WEBHOOK),
        ("https://example.org:8443/a?b=c", Channel.WEBHOOK),
        ("http://127.0.0.1:8080", Channel.WEBHOOK),
        ("http://[::1]:8080/hook", Channel.WEBHOOK),
        ("mailto:eva@example.org", Channel.EMAIL),
        ("mailto:eva.dvorak+bank@example.org", Channel.EMAIL),
        ("file:receipts", Channel.FILE),
        ("file:a-1_b", Channel.FILE),
        ("file:" + "a" * (DESTINATION_MAX_CHARS - 5), Channel.FILE),
    ],
)
def test_a_destinations_scheme_is_its_channel(destination: str, channel: Channel) -> None:
    assert channel_of(destination) is channel


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ("", "begins with https:"),
        ("receipts", "begins with https:"),
        ("ftp://example.org", "begins with https:"),
        ("HTTPS://example.org", "begins with https:"),
        ("https:", "has a host"),
        ("https:///hook", "has a host"),
        ("https://eva:secret@example.org", "no user, password"),
        ("https://eva@example.org", "no user, password"),
        ("https://example.org/#part", "no user, password or fragment"),
        ("mailto:", "one plain address"),
        ("mailto:eva", "one plain address"),
        ("mailto:@example.org", "one plain address"),
        ("mailto:eva@", "one plain address"),
        ("mailto:a@b@example.org", "one plain address"),
        ("mailto:a@example.org,b@example.org", "one plain address"),
        ("mailto:eva@example.org?cc=b@example.org", "one plain address"),
        ("mailto:Eva<eva@example.org>", "one plain address"),
        ("mailto:eva%0Acc@example.org", "one plain address"),
        ("mailto:eva:bob@example.org", "one plain address"),  # a group of addresses, in a header
        ("file:", "lower-case letters"),
        ("file:../etc/passwd", "lower-case letters"),
        ("file:Receipts", "lower-case letters"),
        ("file:a.jsonl", "lower-case letters"),
        ("https://example.org/a b", "no space"),
        ("mailto:eva@example.org\r\nBcc:x@y", "printable"),
        ("file:" + "a" * (DESTINATION_MAX_CHARS - 4), "at most 512"),
    ],
)
def test_an_invalid_destination_is_refused_with_what_to_change(destination: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        channel_of(destination)


@given(st.text() | st.builds("{}:{}".format, st.sampled_from(["http", "https", "mailto", "file"]), st.text()))
def test_any_text_is_a_destination_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert channel_of(text) in Channel
