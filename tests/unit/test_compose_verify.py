"""The verification's pure parts: its payments, its findings about containers, and its result."""

import http.client
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from deploy.compose.engine import Engine
from deploy.drills.drill import Journal, Result, Verdict
from shared.events.payments import Payment
from shared.events.validation import decode_payment
from tests.compose import __main__ as command
from tests.compose import checks, load
from tests.compose.__main__ import Proof, result, verdict_of
from tests.compose.checks import check_targets, findings, foreign
from tests.compose.document import PUBLIC
from tests.compose.engine import Interrupted, VerifyError, mounted_below, remove
from tests.compose.load import ACCOUNTS, SERVERS, Loader, Sent, check_renewed, payment
from tests.partitions import PARTITIONS

GOOD: dict[str, Any] = {
    "Config": {"User": "10001:10001"},
    "HostConfig": {
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": None,
        "SecurityOpt": ["no-new-privileges:true"],
        "Memory": 1,
        "NanoCpus": 1,
        "PidsLimit": 1,
        "Init": True,
        "PortBindings": {},
    },
}
FIGURES: dict[str, Any] = {
    "verdict": "pass",
    "accepted": 10,
    "postings": 20,
    "effects_delivered": 10,
    "effects_in_doubt": 0,
}


SHOWN = Result("A7", "sent-twice", "", "compose", [], Verdict.AS_EXPECTED, "", 1.0, 1, Journal())
PROOF = Proof("pass", "clean", Sent(10, 3), 4, FIGURES, [SHOWN])


def changed(**host: object) -> dict[str, Any]:
    return {**GOOD, "HostConfig": {**GOOD["HostConfig"], **host}}


def published(address: str) -> dict[str, Any]:
    return changed(PortBindings={"8080/tcp": [{"HostIp": address, "HostPort": "1"}]})


@pytest.mark.parametrize("number", range(0, 3_000, 101))
def test_payments_are_valid(number: int) -> None:
    assert isinstance(decode_payment(json.dumps(payment(number)).encode(), PARTITIONS), Payment)


def test_payments_differ_and_reach_every_account() -> None:
    made = [payment(number) for number in range(600)]
    assert len({one["payment_id"] for one in made}) == len(made)
    assert {one["debtor"] for one in made} == {one["creditor"] for one in made} == set(ACCOUNTS)
    assert not [one for one in made if one["debtor"] == one["creditor"]]


def test_a_confined_container_has_no_findings() -> None:
    assert findings("ledger", GOOD) == []
    assert findings("gateway", published("127.0.0.1")) == []


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ({"ReadonlyRootfs": False}, "ledger may write to its image"),
        ({"Privileged": True}, "ledger is privileged"),
        ({"CapDrop": None}, "ledger keeps capabilities"),
        ({"CapAdd": ["NET_ADMIN"]}, "ledger keeps capabilities"),
        ({"SecurityOpt": None}, "ledger may gain privileges"),
        ({"Memory": 0}, "ledger has no limits"),
        ({"PidsLimit": None}, "ledger has no limits"),
        ({"Init": None}, "ledger has no init"),
    ],
)
def test_missing_confinement_is_named(host: dict[str, object], text: str) -> None:
    assert findings("ledger", changed(**host)) == [text]


def test_root_and_ports_are_named() -> None:
    assert findings("ledger", {**GOOD, "Config": {"User": ""}}) == ["ledger runs as root"]
    assert findings("ledger", published("127.0.0.1")) == ["ledger publishes 1 ports"]
    assert findings("gateway", GOOD) == ["gateway publishes 0 ports"]
    assert findings("gateway", published("0.0.0.0")) == ["gateway is published on 0.0.0.0"]  # noqa: S104 # what is wrong


def test_the_identity_of_another_holder_is_named() -> None:
    everyone = frozenset({"ledger", "outbox", "operator"})
    assert foreign("ledger", "authority.pem\nledger.pem\n", everyone) == []
    assert foreign("ledger", "ledger.pem operator.pem", everyone) == ["ledger sees the identity of operator"]


class Flaky(BaseHTTPRequestHandler):
    """A gateway that drops every third request, answers every fourth with 503, and accepts the others."""

    key: ClassVar[str] = "k"
    accepted: ClassVar[Counter[str]] = Counter()
    requests: ClassVar[list[int]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.requests.append(len(self.requests))
            number = len(self.requests)
        if self.headers["Authorization"] != f"Bearer {self.key}":
            self.send_response(http.client.UNAUTHORIZED)
        elif number % 3 == 0:
            self.close_connection = True
            return
        elif number % 4 == 0:
            self.send_response(http.client.SERVICE_UNAVAILABLE)
        else:
            with self.lock:
                self.accepted[body["payment_id"]] += 1
            self.send_response(http.client.ACCEPTED)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class names it so
        """Nothing."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(load, "_PAUSE_S", 0.01)
    Flaky.accepted.clear()
    Flaky.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_every_payment_is_sent_until_it_is_accepted(gateway: int) -> None:
    counts: list[int] = []
    sent = Loader(gateway, Flaky.key, 40).send_all(counts.append)
    assert sorted(counts) == list(range(1, 41))
    assert Flaky.accepted == Counter({f"V-{number}": 1 for number in range(40)})
    assert sent == Sent(40, len(Flaky.requests) - 40)
    assert sent.repeats > 10


def test_a_permanent_refusal_ends_the_verification(gateway: int) -> None:
    with pytest.raises(VerifyError, match="refuses a payment with 401"):
        Loader(gateway, "wrong", 8).send_all(lambda _: None)


def test_a_verdict_is_read_or_reported_missing() -> None:
    assert verdict_of('{"verdict":"pass","accepted":1}\n')["accepted"] == 1
    for text in ("", "verdict: pass", '{"accepted": 1}', "[]"):
        with pytest.raises(VerifyError, match="verdict"):
            verdict_of(text)


def test_a_certificate_that_was_not_renewed_is_named() -> None:
    before, after = dict.fromkeys(SERVERS, "old"), dict.fromkeys(SERVERS, "new")
    check_renewed(before, after)
    for name in SERVERS:
        with pytest.raises(VerifyError, match=f"^{name} still show"):
            check_renewed(before, {**after, name: "old"})


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"verdict": "fail"}, False),
        ({"reconciliation": "breaks"}, False),
        ({"sent": Sent(11, 0)}, False),
        ({"figures": {**FIGURES, "effects_delivered": 9}}, False),
        ({"drills": []}, False),
        ({"drills": [SHOWN, msgspec.structs.replace(SHOWN, verdict=Verdict.NO_DATA)]}, False),
    ],
)
def test_the_proof_holds_only_when_both_verdicts_pass_and_the_counts_agree(
    changes: dict[str, Any], holds: bool
) -> None:
    assert PROOF._replace(**changes).holds is holds


def test_unverified_images_are_named() -> None:
    text = result(PROOF, with_stand_ins=True, seconds=61)
    assert all(image in text for image in PUBLIC)
    assert "verdict         pass" in text
    assert "not verified" not in result(PROOF, with_stand_ins=False, seconds=61)


def test_mounts_that_an_engine_left_are_found_innermost_first() -> None:
    places = ("/", "/x/e/exec/netns/default", "/x/e/exec", "/x/es")
    mounts = "".join(f"none {place} tmpfs rw 0 0\n" for place in places)
    assert mounted_below(mounts, Path("/x/e")) == ["/x/e/exec/netns/default", "/x/e/exec"]


def test_a_folder_is_removed_and_a_missing_one_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "engine" / "data").mkdir(parents=True)
    remove(tmp_path / "engine")
    remove(tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait_that_would_retry_after_a_failure(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def compose(*_: object, **__: object) -> str:
        nonlocal asked
        asked += 1
        os.kill(os.getpid(), number)
        raise VerifyError("ended with 130")

    monkeypatch.setattr(Engine, "compose", compose)
    before = {handled: signal.signal(handled, command._end) for handled in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(Interrupted, match=f"stopped by {number.name}"):
            Engine().up(["ledger"], deadline_s=60)
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)
    assert asked == 1


def test_a_failed_query_of_the_targets_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    up = json.dumps({"data": {"activeTargets": [{"health": "up", "labels": {"instance": "ledger"}}]}})
    answers: Iterator[VerifyError | str] = iter([VerifyError("exec ended with 1"), up])

    def compose(*_: object) -> str:
        answer = next(answers)
        if isinstance(answer, VerifyError):
            raise answer
        return answer

    monkeypatch.setattr(Engine, "compose", compose)
    monkeypatch.setattr(checks, "_POLL_S", 0.01)
    check_targets(Engine())
    assert list(answers) == []
