"""`make compose-verify`: docker-compose.yml on a real engine, loaded under faults, and the verdicts."""

import asyncio
import signal
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import click
import msgspec

from deploy.compose.containers import Containers
from deploy.compose.engine import Engine, EngineError
from deploy.drills.compose import run_on_compose
from deploy.drills.drill import COMPOSE, Result
from deploy.drills.index import DRILLS
from deploy.local.ports import free_ports
from tests.compose import images
from tests.compose.checks import check_confinement, check_dashboards, check_targets
from tests.compose.document import BUILT, PROFILES, ROOT, SERVICES, of_profile
from tests.compose.engine import Interrupted, OwnEngine, VerifyError, engine_for, remove, say
from tests.compose.load import ACCOUNTS, VICTIMS, Sent, check_renewed, load_under_faults, renew, shown

CLIENT: Final = "compose-verify"
"""The gateway's client that sends the payments, and owns the accounts."""
DIRECTORY: Final = ROOT / ".once" / "compose-verify"
SHORT_LIVED: Final = {"BROKER_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""The optimising compiler pays off in hours; brokers that live for minutes would only compete with it for cores."""
CORE: Final = tuple(name for name in of_profile(None) if name != "credentials")  # all others wait for it
SPARK: Final = of_profile("reconciliation")
CHAOS: Final = of_profile("chaos")
ON_COMPOSE: Final = [one for one in DRILLS if COMPOSE in one.targets]
_RECONCILE_S: Final = 1_200.0


class Proof(NamedTuple):
    """Results of the verification.

    Attributes:
        verdict: of `once verify`: pass, fail or no data.
        reconciliation: of Spark: clean or breaks.
        sent: payments that the gateway accepted.
        crashes: how often the members of profile chaos ended.
        figures: of the verdict.
        drills: results of the drills that run on containers.
    """

    verdict: str
    reconciliation: str
    sent: Sent
    crashes: int
    figures: dict[str, Any]
    drills: list[Result]

    @property
    def holds(self) -> bool:
        """Whether every payment was booked once, the reconciliation is clean, and each drill showed its claim."""
        figures = self.figures
        exact = figures["accepted"] == self.sent.accepted and figures["effects_delivered"] == self.sent.accepted
        shown = bool(self.drills) and all(one.passed for one in self.drills)
        return exact and shown and self.verdict == "pass" and self.reconciliation == "clean"


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 the verdicts are pass and clean, 1 they are not, or could not be found out, 2 wrong usage.",
)
def main() -> None:
    """Bring docker-compose.yml up on a real engine, load it under faults, and print the verdicts.

    The machine's Docker is used when it runs and has or can pull all images. Otherwise, on Debian as root, one is
    started with folders of its own, and stand-ins for the public images are built. Progress goes to stderr, the result
    to stdout.
    """
    begun_s = time.monotonic()
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, _end)
    try:
        with ExitStack() as stack:
            engine, with_stand_ins = _engine(stack)
            gateway_port, page_port = free_ports(2)
            settings = {"PUBLISH_ADDRESS": "127.0.0.1", "GATEWAY_PORT": str(gateway_port), "PAGE_PORT": str(page_port)}
            engine = engine_for(engine.environment, {**settings, **SHORT_LIVED})
            stack.callback(bring_down, engine)
            proof = prove(engine, gateway_port, absent=images.ABSENT if with_stand_ins else ())
    except (EngineError, Interrupted) as error:
        click.echo(f"compose-verify: {error}", err=True)
        click.echo("verdict         none: the verification could not be finished")
        sys.exit(1)
    click.echo(result(proof, with_stand_ins=with_stand_ins, seconds=time.monotonic() - begun_s))
    sys.exit(0 if proof.holds else 1)


def prove(engine: Engine, gateway_port: int, *, absent: Collection[str] = ()) -> Proof:
    """Run all steps on an engine with its images.

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
    crashes = sum(Containers(engine).restarts(name) for name in CHAOS)
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
    engine.compose("stop", *SPARK)
    say("running drills")  # last: they make payments of their own
    drills = asyncio.run(run_on_compose(engine, ON_COMPOSE, seed=1, done=_note))
    return Proof(verdict["verdict"], report["verdict"], sent, crashes, verdict, drills)


def _note(result: Result) -> None:
    say(f"{result.title} {result.verdict} {result.reason}".rstrip())


def verdict_of(text: str) -> dict[str, Any]:
    """The JSON object that a command ended with.

    Raises:
        VerifyError: it ended without a verdict.
    """
    try:
        found = msgspec.json.decode(text.strip(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise VerifyError(f"a verdict cannot be read: {error}; it begins {text[:200]!r}") from error
    if "verdict" not in found:
        raise VerifyError(f"there is no verdict in {text[:200]!r}")
    return found


def prepare(engine: Engine) -> str:
    """Open the accounts, subscribe to receipts, and create a client's key; returns the key."""
    say(f"opening {len(ACCOUNTS)} accounts")
    lines = [f"once accounts open {account} --unlimited --owner {CLIENT}" for account in ACCOUNTS]
    lines.append("once subscriptions set '*' --receipt file:receipts")
    script = " && ".join(lines)
    words = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "sh", "operator", "-c", script)
    engine.compose(*words, deadline_s=300)
    output = engine.compose("run", "--rm", "--no-TTY", "credentials", "--client", CLIENT)
    (key,) = [line.rpartition(" ")[2] for line in output.splitlines() if line.startswith("key of ")]
    return key


def bring_down(engine: Engine) -> None:
    """Remove containers, networks and volumes of the verification."""
    say(f"bringing it down: {', '.join(('core', *PROFILES))}")
    engine.compose("down", "--volumes", "--remove-orphans", deadline_s=300)


def result(proof: Proof, *, with_stand_ins: bool, seconds: float) -> str:
    """Format the results, and the images that were not verified."""
    how = "stand-ins for the public images" if with_stand_ins else "the public images"
    unproven = [f"{image} (no stand-in for it)" for image in images.ABSENT]
    unproven += [f"{image} (a stand-in ran)" for image in images.STAND_INS]
    rows = [
        ("engine", f"Docker, with {how}"),
        ("payments", f"{proof.sent.accepted:,} accepted by the gateway, {proof.sent.repeats:,} sent again"),
        ("killed", f"{', '.join(VICTIMS)}; members that crash, {proof.crashes} times"),
        ("postings", f"{proof.figures['postings']:,}"),
        ("effects", f"{proof.figures['effects_delivered']:,}, in doubt {proof.figures['effects_in_doubt']:,}"),
        ("drills", ", ".join(f"{one.key} {one.verdict}" for one in proof.drills)),
        ("duration", f"{seconds:.0f} s"),
        ("verdict", proof.verdict),
        ("reconciliation", proof.reconciliation),
    ]
    if with_stand_ins:
        rows.append(("not verified", "\n                ".join(unproven)))
    return "\n".join(f"{name:<16}{text}" for name, text in rows)


def _engine(stack: ExitStack) -> tuple[Engine, bool]:
    """An engine with all images, and whether stand-ins are among them; the stack stops what is started."""
    remove(DIRECTORY)
    machine = engine_for()
    if machine.answers() and images.has_images(machine):
        DIRECTORY.mkdir(parents=True)
        stack.callback(remove, DIRECTORY)
        engine = engine_for(images.compose_plugin(DIRECTORY))
        say("building this project's images")
        engine.compose("build", "--quiet", deadline_s=3_600)
        return engine, False
    say("no engine of this machine has the images: starting a separate one")
    images.install_engine()
    DIRECTORY.mkdir(parents=True)
    own = OwnEngine(DIRECTORY, images.compose_plugin(DIRECTORY))
    stack.callback(own.stop)
    own.start()
    images.build_stand_ins(own.engine, DIRECTORY)
    for image, file in BUILT.items():
        say(f"building {image}")
        images.build(own.engine, image, ROOT, Path(file))
    return own.engine, True


def _end(number: int, _frame: FrameType | None) -> None:
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, signal.SIG_IGN)  # the clean-up is not interrupted
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


if __name__ == "__main__":
    main(prog_name="python -m tests.compose")
