"""Odd raw records: every field with odd values, and odd texts around a record. ingest decides each, and checkers agree.

Values are JSON as it is sent. So a record may be no JSON, or JSON that parsers read differently.
"""

import json
from collections.abc import Iterator
from typing import Final

from shared.events.payments import MAX_AMOUNT_MINOR, MAX_PAYMENT_ID_CHARS, MAX_REFERENCE_CHARS

Fields = dict[str, bytes]
"""JSON by name of the field."""

_ID: Final = b'"odd-%d"'
"""The payment_id of a record: its number makes it an identity of its own."""
SHAPES: Final[tuple[Fields, ...]] = (
    {
        "schema_version": b"2",
        "type": b'"payment"',
        "payment_id": _ID,
        "debtor": b'"alice"',
        "creditor": b'"cash@3"',
        "amount_minor": b"5",
        "currency": b'"CZK"',
        "credit_currency": b'"EUR"',
        "value_date": b'"2026-01-05"',
        "reference": b'"rent"',
    },
    {
        "schema_version": b"1",
        "payment_id": _ID,
        "account_from": b'"alice"',
        "account_to": b'"bob"',
        "amount_minor": b"5",
        "currency": b'"CZK"',
        "occurred_at": b'"2026-01-05T12:00:00Z"',
        "memo": b'"rent"',
    },
    {
        "schema_version": b"2",
        "type": b'"reversal"',
        "payment_id": _ID,
        "debtor": b'"alice"',
        "reverses": b'"p1"',
        "value_date": b'"2026-01-05"',
        "reference": b'"rent"',
    },
    {
        "schema_version": b"2",
        "type": b'"account_opening"',
        "payment_id": _ID,
        "debtor": b'"alice"',
        "overdraft_minor": b"5",
        "expected_version": b"0",
        "owner": b'"acme"',
    },
)
_NUMBERS: Final = (
    *(
        b"0 -0 1 -1 123 1.0 1.5 -0.0 1e2 1E2 1e-2 5e0 1.5E+300 1e308 1e309 -1e400 1e-400 0.1e1 00 01 +1 .5 1. - 1e"
    ).split(),
    *(b"NaN Infinity -Infinity 0x10 1_0").split(),
    *(
        b"%d" % number
        for number in (MAX_AMOUNT_MINOR, MAX_AMOUNT_MINOR + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40)
    ),
    *(b"%d" % number for number in (-(2**63), -(2**63) - 1)),
    b"123456789012345678901234567890.5",
    b"9" * 1500,
)
_TEXTS: Final = (
    *("", " ", "alice", "bob", "alice ", " alice", "al ice", "ALICE", "123", "5", "alice\x7f", "alicé", "alice\u0301"),
    *(
        "alice\u00a0",
        "alice\u2003",
        "alice\u2028",
        "alice\u0085",
        "\ufeffalice",
        "\U0001f600",
        "\uffff",
        "a\u200bb",
        "\u0661",
    ),
    *(
        "cash@3",
        "cash@0",
        "cash@03",
        "cash@99",
        "cash@1000",
        "cash@-1",
        "cash@",
        "@3",
        "cash@3@3",
        "suspense@3",
        "cash@\u0663",
    ),
    *(
        "p1",
        "acme",
        "EUR",
        "eur",
        "XYZ",
        "XXX",
        "EUR ",
        "payment",
        "reversal",
        "account_opening",
        "Payment",
        "null",
        "true",
    ),
    *("2026-01-05", "2026-02-30", "2026-1-5", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "20260105"),
    *("2026-W02-1", "+2026-01-05", "2026-01-05T12:00:00Z", "2026-01-05T12:00:00+01:00", "2026-01-05 12:00:00"),
    *(
        "2026-01-05T24:00:00Z",
        "2026-01-05T23:59:60Z",
        "2026-01-05T12:00:00.123456Z",
        "2026-01-05T12Z",
        "2026-01-05t12:00:00z",
    ),
    *(
        "0000-01-01T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-05T12:00:00.1234567890123456789Z",
        "\uff12\uff10\uff12\uff16-01-05",
    ),
    *("a" * length for length in (64, 65, MAX_PAYMENT_ID_CHARS, MAX_PAYMENT_ID_CHARS + 1)),
    *(one * (MAX_REFERENCE_CHARS + more) for one in ("a", "é", "\U0001f600") for more in (0, 1)),
)
_OF_EACH_END: Final = tuple(
    text + end
    for text in ("alice", "bob", "p1", "acme", "EUR", "2026-01-05", "2026-01-05T12:00:00Z", "cash@3", "")
    for end in ("\n", "\r", "\r\n", "\0", "\u0085", "\u2028")
)
_JSON: Final = (
    *b'null true false [] {} [1] ["alice"] {"a":1} nul "alice alice" \'alice\''.split(b" "),
    *(b'"\\u0061lice"', b'"\\u0000"', b'"\\u007f"', b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\/"', b'"\\b\\f\\t\\""'),
    *(b'"\\ud800"', b'"\\uD800"', b'"\\udc00"', b'"alice\\uDFFF"', b'"\\ude00\\ud83d"', b'"\\\\ud800"'),
    *(b'"\\u00e"', b'"\\x41"', b'"\\a"', b'"\\u{e9}"', b'"\\U0041"', b'"\\"', b'"al\tice"', b'"al\nice"', b'"al\0ice"'),
    *(b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc3"', b'"\xef\xbf\xbf"'),
    *(b"[" * depth + b"]" * depth for depth in (100, 400, 990, 1001, 5000)),
)
ODD: Final = (
    *_JSON,
    *_NUMBERS,
    *(json.dumps(text, ensure_ascii=False).encode() for text in (*_TEXTS, *_OF_EACH_END)),
)
"""Odd JSON for a field."""


def text(fields: Fields, number: int) -> bytes:
    """A record of fields as JSON, with its number in its payment_id."""
    pairs = (b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
    return (b"{%b}" % b",".join(pairs)).replace(_ID, _ID % number)


def _fields() -> Iterator[Fields]:
    for shape in SHAPES:
        yield shape
        for name in shape:
            yield {key: value for key, value in shape.items() if key != name}
            for odd in ODD:
                yield {**shape, name: odd}
            yield {key.upper() if key == name else key: value for key, value in shape.items()}
            yield {key.replace("_", "\\u005f") if key == name else key: value for key, value in shape.items()}
        for odd in ODD:
            yield {**shape, "unknown": odd}
        for other in {name for one in SHAPES for name in one} - set(shape):
            yield {**shape, other: b"5"}
    payment = SHAPES[0]
    for debtor, creditor in ((b"123", b"123"), (b"123", b'"123"'), (b'"alice"', b'"alice"'), (b"null", b"null")):
        yield {**payment, "debtor": debtor, "creditor": creditor}
    for name in ("", " ", "\\u0000", "\\ud800", "schema_version ", "\ufeffdebtor"):
        yield {**payment, name: b"1"}


def _around(sound: bytes) -> Iterator[bytes | None]:
    """Odd texts with a sound record in them."""
    yield None
    yield from (
        b"",
        b" ",
        b"null",
        b"5",
        b'"x"',
        b"[]",
        b"[{}]",
        b"{}",
        b"{",
        b"true",
        b"\0",
        b"\xff",
        b"hello",
        b"{}{}",
    )
    after = (
        b"{}",
        b" x",
        b",",
        b"]",
        b"}",
        b"] x",
        b"} x",
        b"],[",
        b"},{",
        b",1",
        b",{}",
        b":1",
        b"\0",
        b"\x1a",
        b"//",
        b"/**/",
    )
    yield from (
        sound + end for end in (*after, b"\n", b"\r\n \t", b"\x0b", b"\x0c", b"\xc2\xa0", b"\xe2\x80\xa8", b"#", sound)
    )
    yield from (
        begin + sound for begin in (b"\xef\xbb\xbf", b"\n", b" \t\r\n", b"\0", b"\x0b", b"[", b"{", b"/**/", b"1", b",")
    )
    yield from (sound[:-1], sound[:-1] + b",}", sound[:-1] + b"}}", b"[" + sound + b"]", sound.replace(b'"', b"'"))
    yield from (sound.decode().encode(name) for name in ("utf-16", "utf-16-le", "utf-32", "utf-7"))
    yield from (
        sound.replace(b'"amount_minor":', b"amount_minor:"),
        sound.replace(b",", b", \r\n\t"),
        sound.replace(b":", b"="),
    )
    for name, first in (("amount_minor", b"0"), ("debtor", b'"bob"'), ("schema_version", b"9"), ("unknown", b"1")):
        for doubled in (first, b'"\\ud800"', b"null"):
            field = b'"%b":%b' % (name.encode(), doubled)
            yield b"{%b,%b" % (field, sound[1:])
            yield b"%b,%b}" % (sound[:-1], field)
    for depth in (100, 400, 990, 1001, 5000):
        yield b'{"a":' * depth + b"1" + b"}" * depth
        yield b"[" * depth + b"]" * depth


def odd_records() -> Iterator[bytes | None]:
    """Every odd record, most of them with an identity of their own."""
    number = 0
    for number, fields in enumerate(_fields()):
        yield text(fields, number)
    for shape in SHAPES:
        yield from _around(text(shape, number := number + 1))
