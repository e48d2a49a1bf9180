"""Requests by Kafka's definitions, as the client library sends them and reads their responses."""

from io import BytesIO

import pytest

from shared.kafka.client.requests import Request
from shared.kafka.protocol.headers import decode_request, decode_request_header, encode_response
from shared.kafka.protocol.primitives import ProtocolDecodeError

VALUES = {"TransactionalId": "id", "ProducerId": 4001, "ProducerEpoch": 7, "Committed": True}
END_TXN = Request("EndTxn", 5, VALUES)


def test_the_header_and_the_request_follow_each_other() -> None:
    request = END_TXN.prepare({26: (0, 5)})
    sent = request.build_request_header(correlation_id=77, client_id="once").encode() + request.encode()
    assert decode_request_header(sent) == (26, 5, 77, "once")
    assert decode_request("EndTxn", 5, sent) == VALUES


def test_a_response_is_decoded_past_its_header() -> None:
    answered = {"ThrottleTimeMs": 0, "ErrorCode": 51, "ProducerId": -1, "ProducerEpoch": -1}
    response = BytesIO(encode_response("EndTxn", 5, answered, correlation_id=77))
    assert END_TXN.parse_response_header(response).correlation_id == 77
    assert END_TXN.RESPONSE_TYPE.decode(response) == answered
    with pytest.raises(ProtocolDecodeError):
        END_TXN.RESPONSE_TYPE.decode(BytesIO(response.getvalue()[:-1]))


@pytest.mark.parametrize("versions", [{}, {26: (0, 4)}, {26: (6, 7)}, {25: (0, 5)}])
def test_a_version_that_the_broker_does_not_support_is_refused(versions: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(Exception, match="the broker takes no EndTxnRequest v5") as raised:
        END_TXN.prepare(versions)
    assert type(raised.value).__name__ == "IncompatibleBrokerVersion"
