"""The verification's steps, on an engine that has all images: up, load under faults, judge, down."""

import json
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from deploy.compose.credentials import CERTIFIED, GRAFANA_PASSWORD
from deploy.security.principals import REDIS_EXPORTER
from tests.compose.document import PROFILES, ROOT, SERVICES, of_profile
from tests.compose.engine import Engine, VerifyError, say
from tests.compose.faults import VICTIMS, kill, restarts, wait_back
from tests.compose.inspect import findings, foreign
from tests.compose.load import ACCOUNTS, Loader, Sent
from tests.compose.renewal import check_renewed, renew, shown

PAYMENTS: Final = 3_000
CORE: Final = tuple(name for name in of_profile(None) if name != "credentials")  # each of them waits for it
SPARK: Final = of_profile("reconciliation")
CHAOS: Final = of_profile("chaos")
_OWN: Final = "/run/once"
_RECONCILE_S: Final = 1_200.0
_TARGETS_S: Final = 60.0
_POLL_S: Final = 1.0


class Proof(NamedTuple):
    """Results of a verification.

    Attributes:
        verdict: of `once verify`: pass, fail or no data.
        reconciliation: of Spark: clean or breaks.
        sent: payments that the gateway took.
        crashes: how often the members of profile chaos ended.
        figures: of the verdict.
    """

    verdict: str
    reconciliation: str
    sent: Sent
    crashes: int
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether every payment was booked once, and Spark agrees."""
        figures = self.figures
        exact = figures["accepted"] == self.sent.accepted and figures["effects_delivered"] == self.sent.accepted
        return exact and self.verdict == "pass" and self.reconciliation == "clean"


def prove(engine: Engine, gateway_port: int, *, absent: Collection[str] = ()) -> Proof:
    """Run all steps but the last.

    Args:
        engine: with all images but those that are absent.
        gateway_port: where the gateway is published.
        absent: images that are not available; services that need one are left out.

    Raises:
        VerifyError: a step failed.
    """
    say("bringing up the pipeline")
    engine.up(CORE)
    say("bringing up what watches it")
    watching = [name for name in of_profile("observability") if SERVICES[name]["image"] not in absent]
    engine.up(watching)
    check_confinement(engine, (*(name for name in CORE if name != "topics"), *watching))
    if "grafana" in watching:
        check_dashboards(engine)
    key = prepare(engine)
    say("letting members of each group crash in mid-transaction (profile chaos)")
    engine.compose("up", "--detach", *CHAOS)
    before = shown(engine)
    renew(engine)
    sent = load_under_faults(engine, gateway_port, key)
    check_renewed(before, shown(engine))
    crashes = sum(restarts(engine, name) for name in CHAOS)
    engine.compose("stop", *CHAOS)
    check_targets(engine)
    say("verifying")
    words = ("--json", "--timeout", "240", "--file-sinks", "/var/lib/once/effects")
    verdict = verdict_of(engine.operate("verify", *words, deadline_s=600))
    say("bringing up Spark")
    engine.up(SPARK)
    check_confinement(engine, SPARK)
    say("reconciling in Spark")
    command = ("exec", "--no-TTY", "reconciliation", "once", "reconcile", "--json")
    report = verdict_of(engine.compose(*command, deadline_s=_RECONCILE_S))
    return Proof(verdict["verdict"], report["verdict"], sent, crashes, verdict)


def verdict_of(text: str) -> dict[str, Any]:
    """The JSON object that a command ended with.

    Raises:
        VerifyError: it is none with a verdict.
    """
    try:
        found = msgspec.json.decode(text.strip(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise VerifyError(f"a verdict cannot be read: {error}; it begins {text[:200]!r}") from error
    if "verdict" not in found:
        raise VerifyError(f"there is no verdict in {text[:200]!r}")
    return found


def check_confinement(engine: Engine, services: Sequence[str]) -> None:
    """Check each container against what the deployment promises.

    Raises:
        VerifyError: it is not so; every finding is named.
    """
    principals = frozenset(CERTIFIED)
    wrong: list[str] = []
    for service in services:
        wrong += findings(service, engine.container(service))
        if service in principals and service != REDIS_EXPORTER:  # that image may have no shell
            files = engine.compose("exec", "--no-TTY", service, "ls", _OWN)
            wrong += foreign(service, files, principals)
    if wrong:
        raise VerifyError("; ".join(wrong))
    say(f"{len(services)} containers are confined, and see their own credentials alone")


def prepare(engine: Engine) -> str:
    """Open the accounts, ask for a receipt of each payment, and get a client's key; returns the key."""
    say(f"opening {len(ACCOUNTS)} accounts")
    lines = [f"once accounts open {account} --unlimited" for account in ACCOUNTS]
    lines.append("once subscriptions set '*' --receipt file:receipts")
    script = " && ".join(lines)
    words = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "sh", "operator", "-c", script)
    engine.compose(*words, deadline_s=300)
    output = engine.compose("run", "--rm", "--no-TTY", "credentials", "--client", "compose-verify")
    (key,) = [line.rpartition(" ")[2] for line in output.splitlines() if line.startswith("key of ")]
    return key


def load_under_faults(engine: Engine, gateway_port: int, key: str) -> Sent:
    """Send the payments; when a share of them has been accepted, the next victim is killed.

    Raises:
        VerifyError: a payment was not accepted, or a victim did not come back.
    """
    due = {PAYMENTS * (index + 1) // (len(VICTIMS) + 1): name for index, name in enumerate(VICTIMS)}
    killed: dict[str, int] = {}
    failed: list[VerifyError] = []

    def strike(name: str) -> None:
        try:
            killed[name] = kill(engine, name)
        except VerifyError as error:
            failed.append(error)

    strikes: list[threading.Thread] = []

    def reached(count: int) -> None:
        if count in due:
            strikes.append(threading.Thread(target=strike, args=(due[count],)))
            strikes[-1].start()

    say(f"sending {PAYMENTS:,} payments to the gateway")
    sent = Loader(gateway_port, key, PAYMENTS).send_all(reached)
    for thread in strikes:
        thread.join()
    if failed:
        raise failed[0]
    for name in VICTIMS:
        wait_back(engine, name, killed[name])
    say(f"{sent.accepted:,} payments accepted, {sent.repeats:,} sent again")
    return sent


def check_targets(engine: Engine) -> None:
    """Wait until Prometheus scrapes everything that there is.

    Raises:
        VerifyError: a target is down at the deadline.
    """
    url = "http://127.0.0.1:9090/api/v1/targets?state=active"
    deadline = time.monotonic() + _TARGETS_S
    while True:
        targets: list[dict[str, Any]] = []
        try:
            output = engine.compose("exec", "--no-TTY", "prometheus", "wget", "-q", "-O", "-", url)
            targets = json.loads(output)["data"]["activeTargets"]
            down = [f"{one['labels']['instance']}: {one['lastError']}" for one in targets if one["health"] != "up"]
        except VerifyError as error:
            down = [str(error)]
        if targets and not down:
            say(f"Prometheus scrapes {len(targets)} targets")
            return
        if time.monotonic() > deadline:
            raise VerifyError(f"Prometheus cannot scrape {'; '.join(down) or 'anything'}")
        time.sleep(_POLL_S)


def check_dashboards(engine: Engine) -> None:
    """Compare Grafana's dashboards with those of the repository.

    Raises:
        VerifyError: it has others.
    """
    password = f"$(cat {_OWN}/{GRAFANA_PASSWORD})"
    url = f"http://admin:{password}@127.0.0.1:3000/api/search?type=dash-db"
    found = json.loads(engine.compose("exec", "--no-TTY", "grafana", "sh", "-c", f'wget -q -O - "{url}"'))
    shown = {one["uid"] for one in found}
    wanted = {json.loads(path.read_text())["uid"] for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    if shown != wanted:
        raise VerifyError(f"Grafana shows the dashboards {sorted(shown)}, and there are {sorted(wanted)}")
    say(f"Grafana shows {len(shown)} dashboards")


def bring_down(engine: Engine) -> None:
    """Remove containers, networks and volumes of the verification."""
    say(f"bringing it down: {', '.join(('core', *PROFILES))}")
    engine.compose("down", "--volumes", "--remove-orphans", deadline_s=300)
