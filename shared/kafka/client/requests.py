"""Requests that aiokafka lacks, or has in another version or form, as its connections take them.

Each is sent in one version: the lowest that Kafka 4 takes and that has the fields needed.
"""

from io import BytesIO
from types import SimpleNamespace
from typing import Any, Self

from aiokafka.errors import IncompatibleBrokerVersion

from shared.kafka.protocol.codec import Values, encode
from shared.kafka.protocol.headers import api_key, decode_correlation_id, decode_response, encode_request_header


class Request:
    """A request by Kafka's definition. Its response is a dict by the names of the definition's fields.

    Args:
        api: as Kafka names it, such as EndTxn.
        values: as for `codec.encode`.
    """

    def __init__(self, api: str, version: int, values: Values) -> None:
        self.api = api
        self.version = version
        self.values = values

    @property
    def RESPONSE_TYPE(self) -> Any:  # noqa: N802 # the client's name
        """Return an object whose `decode` returns the response's values."""
        return SimpleNamespace(decode=self._decode_response)

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Self:
        """Return this request.

        Args:
            versions: the lowest and the highest that the broker takes, by API key.

        Raises:
            IncompatibleBrokerVersion: the broker does not take its version.
        """
        lowest, highest = versions.get(api_key(self.api), (0, -1))
        if not lowest <= self.version <= highest:
            raise IncompatibleBrokerVersion(f"the broker takes no {self!r}")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> Any:
        """Return an object whose `encode` returns the header."""
        header = encode_request_header(self.api, self.version, correlation_id=correlation_id, client_id=client_id)
        return SimpleNamespace(encode=lambda: header)

    def encode(self) -> bytes:
        """Encode the request, without its header."""
        return encode(f"{self.api}Request", self.version, self.values)

    def parse_response_header(self, response: BytesIO) -> Any:
        """Return an object with the response's correlation id; `RESPONSE_TYPE` decodes the whole response."""
        return SimpleNamespace(correlation_id=decode_correlation_id(response.getvalue()))

    def _decode_response(self, response: BytesIO) -> Values:
        return decode_response(self.api, self.version, response.getvalue())

    def __repr__(self) -> str:
        return f"{self.api}Request v{self.version}"
