"""Valid bytes to begin with, so that a fuzzer does not have to find the formats first."""

import gzip
import struct
from typing import Final

from shared.kafka.protocol.codec import Values, encode
from shared.kafka.protocol.definitions import valid_versions
from shared.kafka.protocol.headers import encode_request, framed
from tests.keys import line_of
from tests.property.test_protocol import NAMES
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


def request(api: str, version: int, values: Values) -> bytes:
    """An encoded request of a client without a name."""
    return framed(encode_request(api, version, values, correlation_id=7))


_TXN: Final = {"TransactionalId": "id", "ProducerId": 1, "ProducerEpoch": 2}
_ADDED: Final = {f"V3AndBelow{name}": value for name, value in _TXN.items()}
_PARTITION: Final = {"PartitionIndex": 4, "CommittedOffset": 9, "CommittedMetadata": None}
_SENT: Final = [{"Name": "t", "PartitionData": [{"Index": 4, "Records": PRODUCE}]}]
REQUESTS: Final[tuple[bytes, ...]] = tuple(
    request(api, version, values)
    for api, versions, values in (
        ("Produce", (7, 12), {"TransactionalId": "id", "Acks": -1, "TopicData": _SENT}),
        ("FindCoordinator", (1, 3), {"Key": "id", "KeyType": 1}),
        ("InitProducerId", (1, 5), {"TransactionalId": "id", "TransactionTimeoutMs": 10_000}),
        ("AddPartitionsToTxn", (0, 3), _ADDED | {"V3AndBelowTopics": [{"Name": "t", "Partitions": [4]}]}),
        ("AddOffsetsToTxn", (0, 4), _TXN | {"GroupId": "id"}),
        ("TxnOffsetCommit", (0, 5), _TXN | {"GroupId": "id", "Topics": [{"Name": "t", "Partitions": [_PARTITION]}]}),
        ("EndTxn", (1, 5), _TXN | {"Committed": True}),
    )
    for version in versions
)
_STATE: Final = {
    "ProducerId": 1,
    "ProducerEpoch": 2,
    "TransactionTimeoutMs": 3,
    "TransactionStatus": 1,
    "TransactionPartitions": [{"Topic": "t", "PartitionIds": [4]}],
}
STATES: Final[tuple[bytes, ...]] = (
    b"\x00\x00" + encode("TransactionLogKey", 0, {"TransactionalId": "id"}),
    b"\x00\x00" + encode("TransactionLogValue", 0, _STATE),
    b"\x00\x01" + encode("TransactionLogValue", 1, _STATE | {"PreviousProducerId": 9}),
)
MESSAGES: Final[tuple[bytes, ...]] = tuple(
    bytes([place, version]) + encode(name, version, {})
    for place, name in enumerate(NAMES)
    for version in valid_versions(name)
)
"""The index of a message among all definitions, a version, and the message with its defaults."""
LINES: Final = HEADER + b'\n"1";"2";930101;"PRIJEM";"VKLAD";700.00;700.00;"";"";\n'
FILES: Final[tuple[bytes, ...]] = (
    LINES,
    gzip.compress(LINES),
    VERSION_2 + b"\n\n" + REVERSAL,
    gzip.compress(LINES)[:-9],
)
KEY_FILE: Final = f"# a\n{line_of('shop', 'k')}\n\n{line_of('shop', 'l')}\n".encode()
