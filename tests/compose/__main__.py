"""`make compose-verify`: docker-compose.yml on a real engine, loaded under faults, and the verdicts.

The machine's Docker is used when it runs and has or can pull all images. Otherwise, on Debian as root, one is started
with folders of its own, and stand-ins for the public images are built. Progress goes to stderr, the result to stdout.

Exit codes: 0 the verdicts are pass and clean, 1 they are not, or it could not be found out.
"""

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final

from deploy.local.ports import free_ports
from tests.compose import prerequisites
from tests.compose.document import BUILT, ROOT
from tests.compose.engine import Engine, Interrupted, OwnEngine, VerifyError, remove, say
from tests.compose.faults import VICTIMS
from tests.compose.run import Proof, bring_down, prove
from tests.compose.standins import ABSENT, STAND_INS, build, build_stand_ins

DIRECTORY: Final = ROOT / ".once" / "compose-verify"
SHORT_LIVED: Final = {"BROKER_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""The optimising compiler pays in hours; three brokers that live for minutes would only fight it for few cores."""


def main() -> int:
    """Verify, clean up, and print the result."""
    begun_s = time.monotonic()
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, _end)
    try:
        with ExitStack() as stack:
            engine, stood_in = _engine(stack)
            gateway_port, page_port = free_ports(2)
            settings = {"PUBLISH_ADDRESS": "127.0.0.1", "GATEWAY_PORT": str(gateway_port), "PAGE_PORT": str(page_port)}
            engine = Engine(engine.environment, {**settings, **SHORT_LIVED})
            stack.callback(bring_down, engine)
            proof = prove(engine, gateway_port, absent=ABSENT if stood_in else ())
    except (VerifyError, Interrupted) as error:
        print(f"compose-verify: {error}", file=sys.stderr)
        print("verdict         none: the verification could not be finished")
        return 1
    print(result(proof, stood_in=stood_in, seconds=time.monotonic() - begun_s))
    return 0 if proof.holds else 1


def result(proof: Proof, *, stood_in: bool, seconds: float) -> str:
    """Format what was proven and what was not."""
    how = "stand-ins for the public images" if stood_in else "the public images"
    unproven = [f"{image} (no stand-in for it)" for image in ABSENT]
    unproven += [f"{image} (a stand-in ran)" for image in STAND_INS]
    rows = [
        ("engine", f"Docker, with {how}"),
        ("payments", f"{proof.sent.accepted:,} accepted by the gateway, {proof.sent.repeats:,} sent again"),
        ("killed", f"{', '.join(VICTIMS)}; members that crash, {proof.crashes} times"),
        ("postings", f"{proof.figures['postings']:,}"),
        ("effects", f"{proof.figures['effects_delivered']:,}, in doubt {proof.figures['effects_in_doubt']:,}"),
        ("duration", f"{seconds:.0f} s"),
        ("verdict", proof.verdict),
        ("reconciliation", proof.reconciliation),
    ]
    if stood_in:
        rows.append(("not verified", "\n                ".join(unproven)))
    return "\n".join(f"{name:<16}{text}" for name, text in rows)


def _engine(stack: ExitStack) -> tuple[Engine, bool]:
    """An engine with all images, and whether stand-ins are among them; what is started goes with the stack."""
    remove(DIRECTORY)
    machine = Engine()
    if machine.answers() and prerequisites.has_images(machine):
        DIRECTORY.mkdir(parents=True)
        stack.callback(remove, DIRECTORY)
        engine = Engine(prerequisites.compose_plugin(DIRECTORY))
        say("building this project's images")
        engine.compose("build", "--quiet", deadline_s=3_600)
        return engine, False
    say("no engine of this machine has the images: starting a separate one")
    prerequisites.install_engine()
    DIRECTORY.mkdir(parents=True)
    own = OwnEngine(DIRECTORY, prerequisites.compose_plugin(DIRECTORY))
    stack.callback(own.stop)
    own.start()
    build_stand_ins(own.engine, DIRECTORY)
    for image, file in BUILT.items():
        say(f"building {image}")
        build(own.engine, image, ROOT, Path(file))
    return own.engine, True


def _end(number: int, _frame: FrameType | None) -> None:
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, signal.SIG_IGN)  # what follows cleans up
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


if __name__ == "__main__":
    sys.exit(main())
