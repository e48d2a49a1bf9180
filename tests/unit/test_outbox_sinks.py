"""The sinks' pure parts: bodies, signatures, responses, texts, messages."""

import time
from base64 import b64decode
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.utils import format_datetime

import msgspec
import pytest
from aiosmtplib.email import quote_address
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from deploy.drills.sinks.signatures import verify
from services.ledger.domain import requests_for
from services.outbox import outcomes
from services.outbox.outcomes import (
    DETAIL_MAX_CHARS,
    RETRY_AFTER_MAX_S,
    Delivered,
    Refused,
    Retriable,
    Unknown,
    judge,
    parse_retry_after,
    printable,
)
from services.outbox.sinks.email import amount, compose, encode_data, encode_message, message_id, recipient_of
from services.outbox.sinks.webhook import (
    FORMATS,
    EffectBody,
    derive_secret,
    encode_body,
    encode_envelope,
)
from shared.events.effects import EffectKind, EffectRequest, Subscription, Subscriptions
from shared.events.postings import CREDIT, DEBIT, Entry, Posting
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import DeclineReason
from tests.sinks.effects import effect

NOW_S = 1_700_000_000.0
KEY = bytes(range(32))
HOOK = "https://example.org/hook"
PRINTABLE = "".join(map(chr, range(33, 127)))
SENDER, RECIPIENT = "ledger@bank.example", "somebody@example.org"


def test_a_body_has_every_field_but_those_of_delivery() -> None:
    request = effect(1, HOOK, ordered=True, reference='a "b"\n')
    assert encode_body(request) == (
        b'{"effect_id":"00000000000000000000000000000001","kind":"receipt","event":"debit","account":"2378",'
        b'"payment_id":"p-1","debtor":"2378","creditor":"576","amount_minor":-1250,"currency":"EUR","fee_minor":10,'
        b'"value_date":"1993-01-01","reason":null,"reversal":false,"reference":"a \\"b\\"\\n"}'
    )
    assert set(EffectBody.__struct_fields__) == set(EffectRequest.__struct_fields__) - {"destination", "ordered"}


@given(st.text(max_size=64), st.booleans(), st.one_of(st.none(), st.integers(-(2**53), 2**53)))
def test_a_body_is_one_line_with_the_fields_of_the_request(text: str, reversal: bool, amount_minor: int | None) -> None:
    request = effect(1, HOOK, reference=text, reversal=reversal, amount_minor=amount_minor, reason="no_rate")
    body = encode_body(request)
    assert b"\n" not in body
    decoded = msgspec.json.decode(body)
    assert decoded == {name: getattr(request, name) for name in EffectBody.__struct_fields__}


@pytest.mark.parametrize(
    ("event", "kind"),
    [("debit", "payment.debited"), ("credit", "payment.credited"), ("decline", "payment.declined")],
)
def test_an_envelope_has_type_timestamp_and_the_former_body(event: str, kind: str) -> None:
    request = effect(1, HOOK, event=event)
    expected = b'{"type":"%b","timestamp":"1993-01-01T00:00:00Z","data":%b}' % (kind.encode(), encode_body(request))
    assert encode_envelope(request) == expected


def test_a_secret_belongs_to_one_destination() -> None:
    # HMAC-SHA256 over b"https://example.org:443/hook", by openssl
    digest = "80fea960b0df29292fdb0679e748b0c5cd72f121225f6697586dca0a21fcb9fc"
    assert FORMATS["once"].secret_text(derive_secret(KEY, HOOK)) == digest
    whsec = FORMATS["standard"].secret_text(derive_secret(KEY, HOOK))
    assert whsec.startswith("whsec_")
    assert b64decode(whsec.removeprefix("whsec_"), validate=True).hex() == digest
    assert derive_secret(KEY, f"{HOOK}?tenant=1") == derive_secret(KEY, "https://EXAMPLE.org:443/hook")
    others = ("https://example.org/", "http://example.org/hook", "https://example.org:8443/hook", "https://a.org/hook")
    assert len({derive_secret(KEY, destination) for destination in (HOOK, *others)}) == 5
    assert derive_secret(bytes(32), HOOK) != derive_secret(KEY, HOOK)


def signed(name: str, secrets: list[bytes], timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers of a format, their names in lower case."""
    return {name.lower(): value for name, value in FORMATS[name].sign(secrets, "e-1", timestamp_s, body).items()}


def test_signatures_are_as_documented() -> None:
    # HMAC-SHA256 under the ASCII key "736563726574" over b"1700000000.{}", and under b"secret" over
    # b"e-1.1700000000.{}", by openssl
    once = "051c09156ace1cfbabf05b02264505b34a5ea9c74f4bba1ebe63f10d5a407244"
    standard = "ug+znjO+rOl7OSlTrZPWjelFAByH+L5qE7yg6Ck5K1I="
    assert FORMATS["once"].sign([b"secret"], "e-1", 1_700_000_000, b"{}") == {
        "Idempotency-Key": "e-1",
        "Once-Signature": f"t=1700000000,v1={once}",
    }
    assert FORMATS["standard"].sign([b"secret"], "e-1", 1_700_000_000, b"{}") == {
        "webhook-id": "e-1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": f"v1,{standard}",
        "Idempotency-Key": "e-1",
    }


@given(
    st.text(max_size=80), st.sampled_from(["debit", "credit", "decline"]), st.lists(st.binary(min_size=32), max_size=2)
)
def test_the_reference_library_verifies_a_message(reference: str, event: str, other_keys: list[bytes]) -> None:
    request = effect(1, HOOK, event=event, reference=reference)
    body = encode_envelope(request)
    secrets = [derive_secret(key, HOOK) for key in (*other_keys, KEY)]
    headers = FORMATS["standard"].sign(secrets, request.effect_id, int(time.time()), body)
    library = Webhook(FORMATS["standard"].secret_text(secrets[-1]))
    assert library.verify(body, headers)["data"]["reference"] == reference
    for changed in (
        {**headers, "webhook-id": effect(2, HOOK).effect_id},
        {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)},
        {**headers, "webhook-signature": headers["webhook-signature"].rpartition(" ")[0] or "v1,"},
    ):
        with pytest.raises(WebhookVerificationError):
            library.verify(body, changed)
    with pytest.raises(WebhookVerificationError):
        library.verify(body + b" ", headers)


@pytest.mark.parametrize("name", list(FORMATS))
@given(body=st.binary(max_size=100), timestamp_s=st.integers(0, 10**11), late_s=st.integers(-400, 400))
def test_a_signature_is_valid_within_the_tolerance_only(name: str, body: bytes, timestamp_s: int, late_s: int) -> None:
    headers = signed(name, [b"secret"], timestamp_s, body)
    assert verify(b"secret", headers, body, timestamp_s + late_s, 300) is (abs(late_s) <= 300)


@pytest.mark.parametrize("name", list(FORMATS))
@given(body=st.binary(max_size=50), timestamp_s=st.integers(0, 10**9), data=st.data())
def test_a_signature_is_not_valid_after_any_change(
    name: str, body: bytes, timestamp_s: int, data: st.DataObject
) -> None:
    headers = signed(name, [b"secret"], timestamp_s, body)
    assert verify(b"secret", headers, body, timestamp_s)
    assert not verify(b"another", headers, body, timestamp_s)
    assert not verify(b"secret", headers, body + b" ", timestamp_s)
    of_signature = sorted(headers.keys() - {"idempotency-key"})
    header = data.draw(st.sampled_from(of_signature))
    value = headers[header]
    place = data.draw(st.integers(0, len(value) - 1))
    change = data.draw(st.characters().filter(lambda char: char != value[place]))
    changed = value[:place] + change + value[place + 1 :]
    assert not verify(b"secret", {**headers, header: changed}, body, timestamp_s)


@pytest.mark.parametrize("name", list(FORMATS))
def test_one_signature_of_several_is_enough(name: str) -> None:
    headers = signed(name, [b"new", b"old"], 100, b"body")
    assert [verify(secret, headers, b"body", 100) for secret in (b"new", b"old", b"other")] == [True, True, False]


@pytest.mark.parametrize(
    "header",
    ["", "t=100", "v1=", "t=,v1=", "t=-100,v1=00", "t=1e2,v1=00", "t=\u0661\u0660\u0660,v1=00", "t=100,v1=\udc80"],
)
def test_a_malformed_signature_is_not_valid(header: str) -> None:
    assert not verify(b"secret", {"once-signature": header}, b"", 100)
    assert not verify(b"secret", {"webhook-signature": header, "webhook-id": "1", "webhook-timestamp": "100"}, b"", 100)
    assert not verify(b"secret", {"webhook-signature": "v1,", "webhook-timestamp": header}, b"", 100)
    assert not verify(b"secret", {}, b"", 100)


def test_every_status_has_an_outcome() -> None:
    outcomes = {
        status: judge(status, "Reason", "3", b"words", NOW_S) for status in [0, 99, 101, *range(200, 600), 600, 999]
    }
    delivered = {status for status, outcome in outcomes.items() if outcome == Delivered(f"{status} Reason")}
    retriable = {status for status, outcome in outcomes.items() if outcome == Retriable(f"{status} Reason: words", 3.0)}
    refused = {status: outcome.detail for status, outcome in outcomes.items() if isinstance(outcome, Refused)}
    unknown = {status: outcome.detail for status, outcome in outcomes.items() if isinstance(outcome, Unknown)}
    assert delivered == set(range(200, 300))
    assert retriable == {425, 429}
    assert unknown.keys() == {0, 99, 101, 302, 303, 408, 409, *range(500, 600), 600, 999}
    assert refused.keys() == set(range(300, 500)) - retriable - unknown.keys()
    details = refused | unknown
    assert all(detail.startswith(f"{status} Reason: words") for status, detail in details.items())
    redirects = {status for status, detail in details.items() if "redirects are not followed" in detail}
    assert redirects == set(range(300, 400))
    assert all(outcome.retry_after_s == 3.0 for outcome in outcomes.values() if isinstance(outcome, Unknown))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("3601", RETRY_AFTER_MAX_S),
        ("9" * 5000, RETRY_AFTER_MAX_S),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
        ("soon", None),
        ("", None),
        (format_datetime(datetime.fromtimestamp(NOW_S + 90, UTC), usegmt=True), 90.0),
        (format_datetime(datetime.fromtimestamp(NOW_S + 10**6, UTC), usegmt=True), RETRY_AFTER_MAX_S),
        (format_datetime(datetime.fromtimestamp(NOW_S - 1, UTC), usegmt=True), None),
        ("1 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Wed, 21 Oct 9999 07:28:00 -2400", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW_S) == seconds


@given(st.text(max_size=60), st.floats(0, 4e9))
@example("Mon, 01 Jan 0000 00:00:00 GMT", 0.0)
@example("1 Jan 1 0:0:0 +9999", 0.0)
@example(",", 0.0)
def test_no_retry_after_is_out_of_bounds(value: str, now_s: float) -> None:
    seconds = parse_retry_after(value, now_s)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_MAX_S


@given(st.text())
def test_details_are_short_and_on_one_line(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= DETAIL_MAX_CHARS
    assert shown.isprintable()


def test_a_response_body_need_not_be_text() -> None:
    assert judge(400, "", None, b"\xff\x00 a\r\nb", NOW_S) == Refused("400: \ufffd a b")
    assert judge(400, "Bad", None, b"", NOW_S) == Refused("400 Bad")
    assert outcomes.DETAIL_MAX_CHARS == 200


@pytest.mark.parametrize(
    ("amount_minor", "currency", "text"),
    [
        (1250, "EUR", "12.50 EUR"),
        (5, "EUR", "0.05 EUR"),
        (-5, "EUR", "-0.05 EUR"),
        (0, "EUR", "0.00 EUR"),
        (1250, "JPY", "1250 JPY"),
        (-1, "BHD", "-0.001 BHD"),
        (12345, "CLF", "1.2345 CLF"),
        (2**53 - 1, "EUR", "90071992547409.91 EUR"),
        (7, "XXX", "7 minor units of XXX"),
    ],
)
def test_amounts_in_major_units(amount_minor: int, currency: str, text: str) -> None:
    assert amount(amount_minor, currency) == text


@given(st.integers(-(2**53), 2**53), st.sampled_from(sorted(MINOR_DIGITS)))
def test_no_amount_loses_a_digit(amount_minor: int, currency: str) -> None:
    number, code = amount(amount_minor, currency).split(" ")
    whole, _, fraction = number.partition(".")
    assert (code, len(fraction)) == (currency, MINOR_DIGITS[currency])
    assert int(whole + fraction) == amount_minor


@pytest.mark.parametrize(
    ("changes", "subject", "opening"),
    [
        ({}, "Receipt: 12.50 EUR debited from account 2378", "Account 2378 was debited."),
        # A reversal inverts a payment: its debtor is credited, its creditor debited
        (
            {"reversal": True, "amount_minor": 1250},
            "Reversal: 12.50 EUR credited to account 2378",
            "Account 2378 was credited.",
        ),
        (
            {"kind": "notice", "event": "credit", "account": "576", "reversal": True},
            "Reversal: 12.50 EUR debited from account 576",
            "Account 576 was debited.",
        ),
        (
            {"kind": "notice", "event": "credit", "account": "576", "amount_minor": 1250},
            "Notice: 12.50 EUR credited to account 576",
            "Account 576 was credited.",
        ),
        (
            {"kind": "decline_notice", "event": "decline", "amount_minor": None, "currency": None},
            "Payment declined: account 2378",
            "A payment was declined. The balance has not changed.",
        ),
        (
            {"kind": "decline_notice", "event": "decline", "reversal": True},
            "Reversal declined: account 2378",
            "A reversal was declined. The balance has not changed.",
        ),
        ({"kind": "event"}, "Event: debit on account 2378", "The ledger recorded a debit on account 2378."),
    ],
)
def test_each_kind_has_its_text(changes: dict[str, object], subject: str, opening: str) -> None:
    text = compose(effect(1, HOOK, **changes))
    assert text.subject == subject
    assert text.body.splitlines()[0] == opening


@pytest.mark.parametrize(
    ("leg", "amount_minor", "kind", "subject"),
    [
        (DEBIT, -1250, "receipt", "Receipt: 12.50 EUR debited from account alice"),
        (CREDIT, 1250, "notice", "Notice: 12.50 EUR credited to account alice"),
    ],
)
def test_a_mail_has_the_amount_that_the_ledger_booked(leg: str, amount_minor: int, kind: str, subject: str) -> None:
    entries = (Entry("alice", "EUR", amount_minor), Entry("in-transit@0", "EUR", -amount_minor))
    posting = Posting("p", leg, "alice", "bob", entries, "2026-01-05")
    subscribed = Subscriptions((Subscription(kind, "mailto:alice@example.org"),))
    [request] = requests_for(posting, "alice", b"payments.raw:0:0", {"alice": subscribed}, installation="")
    assert compose(request).subject == subject


def test_the_fields_that_a_mail_lists() -> None:
    body = compose(effect(1, HOOK)).body
    assert body == (
        "Account 2378 was debited.\n\n"
        "Change:       -12.50 EUR\nOf this, fee: 0.10 EUR\nValue date:   1993-01-01\nFrom:         2378\n"
        "To:           576\nPayment:      p-1\nReference:    rent\nEffect:       00000000000000000000000000000001\n"
    )
    bare = {"kind": "decline_notice", "amount_minor": None, "currency": None, "fee_minor": 0, "creditor": ""}
    for reason in DeclineReason:
        declined = compose(effect(1, HOOK, **bare, reason=reason, reference="")).body
        names = [line.partition(":")[0] for line in declined.splitlines()[2:]]
        assert names == ["Reason", "Value date", "From", "Payment", "Effect"]
        assert reason not in declined  # as a sentence instead


@given(st.text(max_size=80), st.text(min_size=1, max_size=40), st.sampled_from(list(EffectKind)))
@example("a\r\nBcc: x@example.org\r\n\r\nbody", "\n.\n", EffectKind.RECEIPT)
@example("=?utf-8?q?x?=", "\x85\u2028", EffectKind.EVENT)
def test_no_text_of_a_customer_adds_a_header_or_a_line(reference: str, payment_id: str, kind: EffectKind) -> None:
    request = effect(1, HOOK, kind=kind, reference=reference, payment_id=payment_id)
    encoded = encode_message(request, SENDER, RECIPIENT, NOW_S)
    assert encoded.isascii()
    assert encoded.endswith(b"\r\n")
    assert b"\n" not in encoded.replace(b"\r\n", b"")
    assert max(len(line) for line in encoded.split(b"\r\n")) <= 78
    message = message_from_bytes(encoded, policy=policy.default)
    assert sorted(name.lower() for name in message) == [
        "auto-submitted",
        "content-transfer-encoding",
        "content-type",
        "date",
        "from",
        "message-id",
        "mime-version",
        "subject",
        "to",
    ]
    assert message["To"] == RECIPIENT
    plain = compose(effect(1, HOOK, kind=kind, reference="x", payment_id="y")).body
    assert len(message.get_content().splitlines()) == len(plain.splitlines()) - (not reference)


def test_the_headers_of_a_mail() -> None:
    message = message_from_bytes(encode_message(effect(1, HOOK), SENDER, RECIPIENT, NOW_S), policy=policy.default)
    assert message["Message-ID"] == "<00000000000000000000000000000001@bank.example>"
    assert message["Date"].datetime == datetime.fromtimestamp(NOW_S, UTC)
    assert (message["From"], message["To"]) == (SENDER, RECIPIENT)
    assert message["Auto-Submitted"] == "auto-generated"
    assert (message.get_content_type(), message.get_content_charset()) == ("text/plain", "utf-8")
    assert message_id("00", SENDER) == "<00@bank.example>"


def test_lines_that_begin_with_a_dot_do_not_end_the_mail() -> None:
    assert encode_data(b".\r\n..a\r\nb.\r\n") == b"..\r\n...a\r\nb.\r\n.\r\n"


@pytest.mark.parametrize(
    "destination", ["mailto:zoe@exa_mple.örg", "mailto:zoe@a..ö", "mailto:a b@c", "mailto:a", "https://a/", "file:a"]
)
def test_invalid_recipients(destination: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        recipient_of(destination)


@pytest.mark.parametrize(
    ("destination", "recipient"),
    [
        ("mailto:a.b+c@example.org", "a.b+c@example.org"),
        ("mailto:a@Exa_mple.org", "a@Exa_mple.org"),
        ("mailto:zoë@example.org", "zoë@example.org"),
        ("mailto:zoë@Straße.example", "zoë@xn--strae-oqa.example"),  # not strasse: another domain
        ("mailto:用户@例子.example", "用户@xn--fsqu00a.example"),
    ],
)
def test_a_recipients_domain_is_ascii(destination: str, recipient: str) -> None:
    assert recipient_of(destination) == recipient


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8), st.text(PRINTABLE, max_size=8))
@example(".:", "example.org")
@example("bob:eve", "example.org")
def test_a_mail_goes_to_the_address_that_was_given_and_to_no_other(name: str, domain: str) -> None:
    destination = f"mailto:{name}@{domain}"
    try:
        recipient = recipient_of(destination)
    except ValueError:
        return
    encoded = encode_message(effect(1, destination), SENDER, recipient, NOW_S)
    assert b"".join((b"\r\nTo: ", recipient.encode(), b"\r\n")) in encoded
    assert quote_address(recipient) == f"<{recipient}>"  # as it is sent to the server


def test_a_mail_to_a_name_beyond_ascii_has_it_as_utf_8_in_its_header() -> None:
    encoded = encode_message(effect(1, HOOK, reference="für"), SENDER, "zoë@example.org", NOW_S)
    head, _, body = encoded.partition(b"\r\n\r\n")
    assert "To: zoë@example.org\r\n".encode() in head
    assert body.isascii()
    assert encoded.replace("ë".encode(), b"").isascii()
