"""Valid bytes to begin with, so that a fuzzer does not have to find the formats first."""

import gzip
import struct
from typing import Final

from services.gateway.access import line_of
from shared.kafka.txntrace import frames
from tests.unit.events.test_codecs import VERSION_1, VERSION_2
from tests.unit.test_kafka_batches import CONTROL, TRANSACTIONAL
from tests.unit.test_kafka_batches import encode as encode_batch
from tests.unit.test_load_files import HEADER

REVERSAL: Final = b'{"schema_version":2,"type":"reversal","payment_id":"r-1","debtor":"2378","reverses":"171812"}'
REQUEST: Final = (
    b'{"type":"request","effect_id":"00","kind":"receipt","event":"posted","destination":"file:a","account":"b"}'
)
EVENTS: Final[tuple[bytes, ...]] = (
    VERSION_1,
    VERSION_2,
    REVERSAL,
    REQUEST,
    (
        b'{"type":"transfer","payment_id":"1","debtor":"a","creditor":"b","amount_minor":1,"currency":"CZK",'
        b'"credit_minor":2,"credit_currency":"EUR","value_date":"1993-01-01","fee_minor":3,"rate":"0.04"}'
    ),
    b'{"type":"account_opened","account":"2378","overdraft_minor":null}',
    (
        b'{"type":"posting","payment_id":"1","leg":"debit","debtor":"a","creditor":"b","entries":[["a","CZK",-1]],'
        b'"value_date":"1993-01-01"}'
    ),
    b'{"type":"resolution","effect_id":"00","revision":1,"action":"confirm","request":%b}' % REQUEST,
    b'{"balances":{"CZK":-70350},"overdraft_minor":null,"closed":true}',
    b'{"subscriptions":[{"kind":"receipt","destination":"mailto:a@b.example","ordered":true}]}',
    b'{"fixed_minor":10,"basis_points":5,"min_minor":0,"max_minor":null}',
    b'{"rate":"1.0850"}',
    b'{"currency":"CZK","opening_minor":0,"closing_minor":1,"file":"a.csv"}',
    b'{"incarnation":"i","told":false,"at_risk":-1,"until":5,"due_ms":1}',
    b'{"next_offset":7}',
    b'{"unknown":' + b"[" * 2000,
)

PRODUCE: Final = encode_batch(0, count=3, attributes=TRANSACTIONAL)
BATCHES: Final[tuple[bytes, ...]] = (
    PRODUCE,
    encode_batch(7) + encode_batch(8, attributes=TRANSACTIONAL | CONTROL, key=struct.pack(">HH", 0, 1)),
    PRODUCE + PRODUCE[:40],
    PRODUCE[:8] + struct.pack(">i", -12) + PRODUCE[12:],
)


def request(api_key: int, version: int, body: bytes) -> bytes:
    """A request as it is written, of a client that has no name."""
    message = struct.pack(">hhih", api_key, version, 7, -1) + body
    return struct.pack(">i", len(message)) + message


_ID: Final = struct.pack(">h2s", 2, b"id")
_TOPIC: Final = struct.pack(">ih1si", 1, 1, b"t", 1)
_SENT: Final = _ID + struct.pack(">hi", -1, 100) + _TOPIC + struct.pack(">ii", 4, len(PRODUCE)) + PRODUCE
REQUESTS: Final[tuple[bytes, ...]] = (
    request(frames.PRODUCE, 7, _SENT),
    request(frames.FIND_COORDINATOR, 1, _ID + b"\x01"),
    request(frames.INIT_PRODUCER_ID, 1, _ID + struct.pack(">i", 10_000)),
    request(frames.ADD_PARTITIONS_TO_TXN, 0, _ID + struct.pack(">qh", 1, 2) + _TOPIC + struct.pack(">i", 4)),
    request(frames.ADD_OFFSETS_TO_TXN, 0, _ID + struct.pack(">qh", 1, 2) + _ID),
    request(frames.TXN_OFFSET_COMMIT, 0, _ID + _ID + struct.pack(">qh", 1, 2) + _TOPIC + struct.pack(">iqh", 4, 9, -1)),
    request(frames.END_TXN, 1, _ID + struct.pack(">qhb", 1, 2, 1)),
)
STATES: Final[tuple[bytes, ...]] = (
    b"\x00\x00" + _ID,
    struct.pack(">hqhib", 0, 1, 2, 3, 1) + _TOPIC + struct.pack(">iqq", 4, 5, 6),
    struct.pack(">hqhib", 1, 1, 2, 3, 1)
    + b"\x02\x02t\x02\x00\x00\x00\x04\x00"
    + struct.pack(">qq", 5, 6)
    + b"\x01\x00\x08"
    + struct.pack(">q", 9),
)
LINES: Final = HEADER + b'\n"1";"2";930101;"PRIJEM";"VKLAD";700.00;700.00;"";"";\n'
FILES: Final[tuple[bytes, ...]] = (
    LINES,
    gzip.compress(LINES),
    VERSION_2 + b"\n\n" + REVERSAL,
    gzip.compress(LINES)[:-9],
)
KEY_FILE: Final = f"# a\n{line_of('shop', 'k')}\n\n{line_of('shop', 'l')}\n".encode()
