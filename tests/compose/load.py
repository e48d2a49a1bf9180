"""Payments through the gateway's published port, as a client sends them.

Invariant: a payment counts as sent when the gateway has answered 202; until then it is sent again under the same
payment_id, up to a deadline. Which payments there are depends on their number only.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.compose.engine import VerifyError

ACCOUNTS: Final = tuple(f"verify-{number}" for number in range(12))
CURRENCY: Final = "EUR"
_SENDERS: Final = 8
_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_DEADLINE_S: Final = 300.0


def payment(number: int) -> dict[str, object]:
    """The payment of this number. Pure."""
    debtor = number % len(ACCOUNTS)
    creditor = (debtor + 1 + number // len(ACCOUNTS) % (len(ACCOUNTS) - 1)) % len(ACCOUNTS)
    return {
        "schema_version": 2,
        "payment_id": f"V-{number}",
        "debtor": ACCOUNTS[debtor],
        "creditor": ACCOUNTS[creditor],
        "amount_minor": 100 + number % 900,
        "currency": CURRENCY,
    }


@dataclass
class Sent:
    """Result of a load.

    Attributes:
        accepted: payments that the gateway answered with 202.
        repeats: sendings beyond the first of each.
    """

    accepted: int = 0
    repeats: int = 0


class Loader:
    """Sends payments, and counts.

    Args:
        port: the gateway's on loopback.
        key: a client's.
        total: how many.
    """

    def __init__(self, port: int, key: str, total: int) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._total = total
        self._lock = threading.Lock()
        self.sent = Sent()

    def send_all(self, reached: Callable[[int], None]) -> Sent:
        """Send all, calling `reached` with each count of accepted ones, from whichever thread has got there.

        Raises:
            VerifyError: one was not accepted by its deadline, or was refused for good.
        """
        with ThreadPoolExecutor(_SENDERS) as pool:
            for _ in pool.map(lambda first: self._send_some(first, reached), range(_SENDERS)):
                pass
        return self.sent

    def _send_some(self, first: int, reached: Callable[[int], None]) -> None:
        for number in range(first, self._total, _SENDERS):
            repeats = self._send(json.dumps(payment(number)).encode())
            with self._lock:
                self.sent.accepted += 1
                self.sent.repeats += repeats
                count = self.sent.accepted
            reached(count)

    def _send(self, body: bytes) -> int:
        """Send one until it is accepted; how often it was sent again."""
        deadline = time.monotonic() + _DEADLINE_S
        for repeats in _counted():
            status, said = self._post(body)
            if status == http.client.ACCEPTED:
                return repeats
            refused = status is not None and status < http.client.INTERNAL_SERVER_ERROR
            if refused and status not in {http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS}:
                raise VerifyError(f"the gateway refuses a payment with {status}: {said}")
            if time.monotonic() > deadline:
                raise VerifyError(f"a payment was not accepted within {_DEADLINE_S:g} s: {said}")
            time.sleep(_PAUSE_S)
        raise AssertionError

    def _post(self, body: bytes) -> tuple[int | None, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", "/payments", body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(500).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return None, str(error)
        finally:
            connection.close()


def _counted() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
