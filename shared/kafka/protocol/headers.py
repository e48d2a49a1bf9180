"""Requests and responses with their headers, as they go over a connection; `framed` puts their length in front.

The versions of headers follow from those of messages (KIP-482). Every version begins with the same fields, so they can
be read before the API is known.

Invariant: a decoder raises ProtocolDecodeError for bytes that are cut off or left over, and for unknown versions. An
encoder raises what `codec.encode` raises.
"""

import struct
from typing import Final, NamedTuple

from shared.kafka.protocol.codec import Values, decode, decode_at, encode
from shared.kafka.protocol.definitions import definition, flexible_versions

LENGTH: Final = struct.Struct(">i")
"""The length in front of each request and response."""


class RequestHeader(NamedTuple):
    """The header of a request; client_id is None where the client has none."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def framed(message: bytes) -> bytes:
    """Return a request or response with its length in front."""
    return LENGTH.pack(len(message)) + message


def api_key(api: str) -> int:
    """Return the key of an API, such as EndTxn."""
    key: int = definition(f"{api}Request")["apiKey"]
    return key


def encode_request_header(api: str, version: int, *, correlation_id: int, client_id: str | None) -> bytes:
    """Encode the header of a request to an API."""
    values = {
        "RequestApiKey": api_key(api),
        "RequestApiVersion": version,
        "CorrelationId": correlation_id,
        "ClientId": client_id,
    }
    return encode("RequestHeader", _of_request(api, version), values)


def encode_request(
    api: str, version: int, values: Values, *, correlation_id: int = 0, client_id: str | None = None
) -> bytes:
    """Encode a request with its header."""
    header = encode_request_header(api, version, correlation_id=correlation_id, client_id=client_id)
    return header + encode(f"{api}Request", version, values)


def decode_request_header(request: bytes) -> RequestHeader:
    """Decode the header of a request to any API."""
    return RequestHeader(*decode_at("RequestHeader", 1, request, 0)[0].values())


def decode_request(api: str, version: int, request: bytes) -> Values:
    """Decode a request, past its header."""
    _, at = decode_at("RequestHeader", _of_request(api, version), request, 0)
    return decode(f"{api}Request", version, request, at)


def encode_response(api: str, version: int, values: Values, *, correlation_id: int) -> bytes:
    """Encode a response with its header."""
    header = encode("ResponseHeader", _of_response(api, version), {"CorrelationId": correlation_id})
    return header + encode(f"{api}Response", version, values)


def decode_correlation_id(response: bytes) -> int:
    """Decode the correlation id of a response to any API."""
    found: int = decode_at("ResponseHeader", 0, response, 0)[0]["CorrelationId"]
    return found


def decode_response(api: str, version: int, response: bytes) -> Values:
    """Decode a response, past its header."""
    _, at = decode_at("ResponseHeader", _of_response(api, version), response, 0)
    return decode(f"{api}Response", version, response, at)


def _of_request(api: str, version: int) -> int:
    return 2 if version in flexible_versions(f"{api}Request") else 1


def _of_response(api: str, version: int) -> int:
    # The client that asks for ApiVersions does not know yet which versions the broker takes
    return 1 if version in flexible_versions(f"{api}Response") and api != "ApiVersions" else 0
