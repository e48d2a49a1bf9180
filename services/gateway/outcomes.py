"""Outcomes of payments by identity, asked of the view's API.

Invariant: requests to the view are bounded in number and time. One that cannot be answered is 503 with Retry-After, and
never counts as an unknown payment.
"""

from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec
from aiohttp import hdrs
from yarl import URL

from services.gateway.answers import Outcome, OutcomeState
from services.gateway.domain import Refusal, RefusedError

LOOKUPS_MAX: Final = 256  # under way at once; most of them wait for an outcome
LOOKUPS_OF_CLIENT_MAX: Final = 64
WAIT_S_MAX: Final = 30.0
TIMEOUT_S: Final = 5.0  # of the view's answer, beyond the time that it waits for an outcome
_BYTES_MAX: Final = 1024 * 1024
_FINAL: Final = frozenset({OutcomeState.COMPLETED, OutcomeState.DECLINED, OutcomeState.OPENED})


class _Outcomes(msgspec.Struct):
    payments: list[Outcome]


_decode = msgspec.json.Decoder(_Outcomes).decode


class View:
    """A client of the view, open while its context is entered.

    Args:
        url: of the view, without a path.
    """

    def __init__(self, url: str) -> None:
        self._url = URL(url)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=LOOKUPS_MAX))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def outcome(self, debtor: str, payment_id: str, wait_s: float, authorization: str) -> Outcome | None:
        """Return the first outcome of an identity, as soon as it is known; None if it is not within the time.

        Args:
            wait_s: seconds to wait at most.
            authorization: of the client: the view checks the same keys.

        Raises RefusedError: the view does not answer, or not what it should.
        """
        query = {"debtor": debtor, "payment_id": payment_id, "limit": "1", "wait": f"{wait_s:g}"}
        try:
            async with self._session.get(
                "/v1/payments",
                params=query,
                headers={hdrs.AUTHORIZATION: authorization},
                timeout=aiohttp.ClientTimeout(total=wait_s + TIMEOUT_S),
            ) as answer:
                status, body = answer.status, await _body(answer)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _unavailable("it does not answer") from error
        if status != 200:
            raise _unavailable(f"it answers with {status}")
        try:
            found = _decode(body).payments
        except ValueError as error:
            raise _unavailable("its answer has another form") from error
        if not found:
            return None
        return msgspec.structs.replace(found[0], final=found[0].state in _FINAL)


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """Read all of an answer: it may come in parts."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > _BYTES_MAX:
            raise _unavailable("its answer is too long")
    return bytes(body)


def _unavailable(why: str) -> RefusedError:
    return RefusedError(Refusal.VIEW_UNAVAILABLE, f"the view cannot say how far the payment has come, {why}: ask again")
