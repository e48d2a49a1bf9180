"""Payments through the gateway's published port, with kills meanwhile.

Invariant: a payment counts as sent when the gateway has answered 202; until then it is sent again under the same
payment_id, up to a deadline. Which payments there are depends on their number only.

The kills are those of drills (deploy/compose/containers.py). Each container must come back with its renewed
certificate, and be accepted.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Final

from deploy.compose.containers import Containers
from deploy.compose.engine import Engine, EngineError
from tests.compose.engine import VerifyError, say

PAYMENTS: Final = 3_000
ACCOUNTS: Final = tuple(f"verify-{number}" for number in range(12))
CURRENCY: Final = "EUR"
_SENDERS: Final = 8
_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_DEADLINE_S: Final = 300.0

VICTIMS: Final = ("ledger", "broker-1", "redis")

_ASKING: Final = "outbox"
"""It reaches both brokers and Redis."""
SERVERS: Final = {"broker-1": 9092, "redis": 6379}
"""The victims with a server certificate, and their addresses."""
_SHOW: Final = """\
import ssl, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    print(ssl.get_server_certificate((host, int(port))), end=";")
"""


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
        repeats: sends after the first of each payment.
    """

    accepted: int = 0
    repeats: int = 0


class Loader:
    """Sends payments, and counts.

    Args:
        port: the gateway's on loopback.
        key: a client's.
        total: number of payments.
    """

    def __init__(self, port: int, key: str, total: int) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._total = total
        self._lock = threading.Lock()
        self.sent = Sent()

    def send_all(self, reached: Callable[[int], None]) -> Sent:
        """Send all payments, calling `reached` from any thread with each count of accepted ones.

        Raises:
            VerifyError: a payment was not accepted by its deadline, or was refused.
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
                accepted = self.sent.accepted
            reached(accepted)

    def _send(self, body: bytes) -> int:
        """Send a payment until it is accepted; returns the number of repeats."""
        deadline = time.monotonic() + _DEADLINE_S
        for repeats in count():
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


def load_under_faults(engine: Engine, gateway_port: int, key: str) -> Sent:
    """Send the payments, and kill the next victim after each share of accepted ones.

    Raises:
        EngineError: a payment was not accepted, or a victim did not come back.
    """
    due = {PAYMENTS * (index + 1) // (len(VICTIMS) + 1): name for index, name in enumerate(VICTIMS)}
    containers = Containers(engine)
    failed: list[EngineError] = []

    def strike(name: str) -> None:
        say(f"killing {name}")
        try:
            if not containers.kill(name):
                raise VerifyError(f"{name} did not run when it was to be killed")
        except EngineError as error:
            failed.append(error)

    strikes: list[threading.Thread] = []

    def reached(accepted: int) -> None:
        if accepted in due:
            strikes.append(threading.Thread(target=strike, args=(due[accepted],)))
            strikes[-1].start()

    say(f"sending {PAYMENTS:,} payments to the gateway")
    sent = Loader(gateway_port, key, PAYMENTS).send_all(reached)
    for thread in strikes:
        thread.join()
    if failed:
        raise failed[0]
    containers.wait_ready(*VICTIMS)
    say(f"{', '.join(VICTIMS)} are back")
    say(f"{sent.accepted:,} payments accepted, {sent.repeats:,} sent again")
    return sent


def shown(engine: Engine) -> dict[str, str]:
    """The servers' present certificates, in PEM."""
    asked = [f"{name}:{port}" for name, port in SERVERS.items()]
    output = engine.compose("exec", "--no-TTY", _ASKING, "python", "-c", _SHOW, *asked)
    return dict(zip(SERVERS, output.split(";"), strict=False))


def renew(engine: Engine) -> None:
    """Reissue the victims' certificates as in docs/deployment.md. They use the old ones until a restart.

    Raises:
        VerifyError: not all were issued.
    """
    output = engine.compose("run", "--rm", "--no-TTY", "credentials", "--renew", *VICTIMS)
    missing = [name for name in VICTIMS if f"{name}/{name}.pem written" not in output]
    if missing:
        raise VerifyError(f"no new certificate for {', '.join(missing)}; credentials said:\n{output}")
    say(f"{', '.join(VICTIMS)} have new certificates, to be read when they are started again")


def check_renewed(before: dict[str, str], after: dict[str, str]) -> None:
    """Check that each server shows a new certificate.

    Raises:
        VerifyError: one still shows its old certificate.
    """
    old = [name for name in SERVERS if after[name] == before[name]]
    if old:
        raise VerifyError(f"{', '.join(old)} still show an old certificate")
    say(f"{', '.join(SERVERS)} show their new certificates")
