"""The outbox of one version is killed with requests under way, and the other version goes on: no effect twice.

What the first version had claimed and marked in Redis, and not committed, counts for the other one. A mail server shows
that: unlike a receiver of keys, it takes a second mail.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.outbox import BRIEF
from shared.eos import crash
from shared.events.effects import EffectState
from tests.harness import Service
from tests.outbox import World, assert_i11, world
from tests.tiers import full
from tests.upgrade.installation import Version
from tests.upgrade.previous import previous, unpack

pytestmark = [pytest.mark.timeout(300), full]

EFFECTS = 40
CALLED = 10
"""The process is killed after so many calls, with others under way and none of them committed."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        yield made


@pytest.mark.parametrize("version", list(Version))
async def test_every_effect_is_made_once(running: World, tmp_path: Path, version: Version) -> None:
    root = unpack(tmp_path)

    def of(its_version: Version, service: Service) -> Service:
        return previous(service, root) if its_version is Version.PREVIOUS else service

    running.outbox().start().wait_ready().process.terminate()  # trusts Redis
    # As docs/deployment.md says: the same body at every call, whichever version makes it
    former = {"WEBHOOK_FORMAT": "once"}
    killed = running.outbox(CRASH_POINT=f"{crash.AFTER_CALL}=kill:{CALLED}", **BRIEF, **former)
    doomed = of(version, killed).start().wait_ready()
    requests = await running.request(EFFECTS, running.receiver.url)
    assert doomed.wait_exit() == -signal.SIGKILL
    successor = of(version.other, running.outbox(**former)).start().wait_ready()
    results = await running.settled(requests)
    assert assert_i11(requests, results, running.webhook_effects()) == {EffectState.SENT: EFFECTS}
    assert successor.process.terminate() == 0


MAILS = 16


@pytest.mark.parametrize(
    ("point", "doubts"),
    [(f"{crash.AFTER_MARK}=kill:1", 0), (f"{crash.AFTER_CALL}=kill:3", 1)],
    ids=["marked", "called"],
)
async def test_marks_and_claims_of_the_previous_version_prevent_a_second_mail(
    running: World, tmp_path: Path, point: str, doubts: int
) -> None:
    root = unpack(tmp_path)
    previous(running.outbox(), root).start().wait_ready().process.terminate()  # trusts Redis
    settings = {"OUTBOX_CALLS_MAX": "1", **BRIEF}  # one call at a time, so one is under way
    doomed = previous(running.outbox(CRASH_POINT=point, **settings), root).start().wait_ready()
    requests = await running.request(MAILS, "mailto:alice@example.org", account="one")  # so on one partition
    assert doomed.wait_exit() == -signal.SIGKILL
    made = sum(running.mail_effects()[request.effect_id] for request in requests)
    assert made > 0
    successor = running.outbox(**settings).start().wait_ready()
    results = await running.settled(requests)
    states = assert_i11(requests, results, running.mail_effects())
    assert states[EffectState.IN_DOUBT] == doubts
    assert states[EffectState.SENT] == MAILS - doubts
    assert successor.process.terminate() == 0
