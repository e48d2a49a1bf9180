"""Child processes and their supervision, with small programs instead of brokers and services."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.ports import free_ports
from deploy.local.process import LOG_BYTES_MAX, ManagedProcess, ProcessDeadlineError, ProcessNotRunningError
from deploy.local.supervisor import state
from deploy.local.supervisor.component import Component, http_ready

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


def wait_for(reached: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.02)


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Spawner:
    """Starts processes that run Python code, and ends them after the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.made: list[ManagedProcess] = []

    def __call__(self, code: str, **env: str) -> ManagedProcess:
        name = f"child-{len(self.made)}"
        process = ManagedProcess(name, [sys.executable, "-c", code], env, self._directory / "logs" / f"{name}.log")
        self.made.append(process)
        return process


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    made = Spawner(tmp_path)
    yield made
    for process in made.made:
        process.kill()


def test_a_process_has_its_environment_and_keeps_its_exit_code_and_log(spawner: Spawner) -> None:
    process = spawner("import os, sys; print(os.environ['X'], os.environ['PATH'] != ''); sys.exit(75)", X="mine")
    process.start()
    assert process.wait(10) == 75
    assert (process.returncode, process.pid) == (75, None)
    assert process.log_tail() == "mine True"


def test_a_second_start_has_no_effect(spawner: Spawner) -> None:
    process = spawner(SLEEP)
    assert (process.returncode, process.pid) == (None, None)
    assert process.start() == process.start()


def test_terminate_lets_a_process_end_by_itself(spawner: Spawner) -> None:
    process = spawner(SLEEP)
    process.start()
    assert process.terminate(10) == -signal.SIGTERM


def test_terminate_kills_a_process_that_does_not_end(spawner: Spawner) -> None:
    process = spawner(STUBBORN)
    process.start()
    wait_for(lambda: process.log_tail() == "up")
    assert process.terminate(0.2) == -signal.SIGKILL


def test_pause_and_resume(spawner: Spawner) -> None:
    process = spawner(SLEEP)
    pid = process.start()
    process.pause()
    assert process_state(pid) == "T"
    assert process.running
    process.resume()
    wait_for(lambda: process_state(pid) != "T")


def test_a_paused_process_can_be_terminated(spawner: Spawner) -> None:
    process = spawner(SLEEP)
    process.start()
    process.pause()
    assert process.terminate(10) == -signal.SIGTERM


def test_kill_ends_forked_children_as_well(spawner: Spawner) -> None:
    # One write for a line: of two processes that print, each writes its text and then the end of its line
    process = spawner(r"import os, time; os.write(1, b'%d\n' % os.fork()); time.sleep(60)")
    process.start()
    wait_for(lambda: len(process.log_tail().splitlines()) == 2)
    (forked,) = [int(line) for line in process.log_tail().splitlines() if line != "0"]
    process.kill()
    wait_for(lambda: state.start_ticks(forked) is None)


def test_a_process_that_does_not_run_cannot_be_paused_or_awaited(spawner: Spawner) -> None:
    process = spawner(SLEEP)
    with pytest.raises(ProcessNotRunningError):
        process.pause()
    with pytest.raises(ProcessNotRunningError):
        process.wait(1)
    process.start()
    with pytest.raises(ProcessDeadlineError):
        process.wait(0.05)


def test_a_large_log_is_rotated_at_a_start(spawner: Spawner) -> None:
    process = spawner("print('new')")
    process.log_path.parent.mkdir()
    with process.log_path.open("wb") as log:
        log.truncate(LOG_BYTES_MAX + 1)
    process.start()
    process.wait(10)
    assert process.log_path.read_text() == "new\n"
    assert process.log_path.with_suffix(".log.1").stat().st_size == LOG_BYTES_MAX + 1


@pytest.mark.parametrize("from_thread", [False, True], ids=["main-thread", "short-lived-thread"])
def test_children_die_with_their_parent_and_only_then(tmp_path: Path, from_thread: bool) -> None:
    code = f"""
import sys, threading, time
from pathlib import Path
from deploy.local.process import ManagedProcess
child = ManagedProcess("child", [sys.executable, "-c", {STUBBORN!r}], {{}}, Path({str(tmp_path)!r}) / "child.log")
if {from_thread}:
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
else:
    child.start()
time.sleep(0.3)  # the time in which a death signal of the ended thread would have come
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        answer = parent.stdout.readline().strip()
        try:
            assert answer.isdigit(), "the child died before its parent"
            pid = int(answer)
            assert state.start_ticks(pid) is not None
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: state.start_ticks(pid) is None)


def supervised(process: ManagedProcess, *, ready: bool = True) -> Component:
    component = Component(process, lambda: ready, "127.0.0.1:1")
    component.start()
    return component


def refused(spawner: Spawner) -> Component:
    """A component whose last run refused its settings, as supervision has recorded; its next run goes on."""
    component = supervised(spawner("import sys; sys.exit(78)"))
    component.process.wait(10)
    component.keep_running(time.monotonic())
    component.process.argv[-1] = SLEEP
    return component


def test_a_killed_component_is_restarted_after_its_delay(spawner: Spawner) -> None:
    component = supervised(spawner(SLEEP))
    component.check(time.monotonic())
    assert component.snapshot().state == "ready"
    component.kill()
    killed_s = time.monotonic()
    component.keep_running(killed_s)
    assert component.snapshot().state == "waiting"
    component.keep_running(killed_s + 0.19)
    assert component.snapshot().pid is None
    component.keep_running(killed_s + 0.21)
    shown = component.snapshot()
    assert (shown.state, shown.restarts, shown.last_exit_code) == ("starting", 1, -signal.SIGKILL)
    component.check(killed_s + 0.22)
    assert component.snapshot().state == "ready"


def test_a_refused_setting_is_shown_and_not_retried(spawner: Spawner) -> None:
    component = supervised(spawner("import sys; sys.exit(78)"))
    component.process.wait(10)
    for later_s in (0, 100, 200):
        component.keep_running(time.monotonic() + later_s)
    shown = component.snapshot()
    assert (shown.state, shown.restarts, shown.last_exit_code) == ("failed", 0, 78)


def test_supervision_goes_on_after_a_refused_setting_was_corrected(spawner: Spawner) -> None:
    component = refused(spawner)
    component.start()
    component.kill()
    component.keep_running(time.monotonic())
    component.keep_running(time.monotonic() + 100)
    shown = component.snapshot()
    assert (shown.state, shown.restarts, shown.last_exit_code) == ("starting", 1, -signal.SIGKILL)


def test_supervision_during_a_start_does_not_mistake_the_last_run_for_the_new_one(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = refused(spawner)
    start = component.process.start
    supervision = threading.Thread(target=lambda: component.keep_running(time.monotonic()))

    def start_meanwhile() -> int:
        supervision.start()
        supervision.join(0.3)  # time enough to look at the run that ended
        return start()

    with monkeypatch.context() as patch:
        patch.setattr(component.process, "start", start_meanwhile)
        component.start()
        supervision.join()
    component.kill()
    component.keep_running(time.monotonic())
    component.keep_running(time.monotonic() + 100)
    shown = component.snapshot()
    assert (shown.state, shown.restarts, shown.last_exit_code) == ("starting", 1, -signal.SIGKILL)


def test_a_component_is_not_ready_before_its_check_passes(spawner: Spawner) -> None:
    component = supervised(spawner(SLEEP), ready=False)
    component.check(time.monotonic())
    assert component.snapshot().state == "starting"
    assert not component.ready


def test_an_answer_of_the_last_run_does_not_make_the_new_one_ready(spawner: Spawner) -> None:
    process = spawner(SLEEP)

    def answers_and_is_restarted() -> bool:
        process.kill()
        process.start()
        return True

    component = Component(process, answers_and_is_restarted, "127.0.0.1:1")
    component.start()
    component.check(time.monotonic())
    assert component.snapshot().state == "starting"


def test_a_run_that_ended_is_not_judged_by_the_exit_code_of_the_one_before(spawner: Spawner) -> None:
    component = refused(spawner)
    assert component.snapshot().state == "failed"
    component.process.argv[-1] = "import sys; sys.exit(75)"
    component.start()
    component.process.wait(10)
    assert component.snapshot().state == "waiting"
    component.keep_running(time.monotonic())
    assert component.snapshot().state == "waiting"


def test_a_start_that_the_machine_refuses_is_retried_in_each_round(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = supervised(spawner(SLEEP))
    component.kill()
    component.keep_running(time.monotonic())
    later_s = time.monotonic() + 1
    with monkeypatch.context() as patch:
        patch.setattr(component.process, "log_path", Path("/"))
        for _ in range(3):
            with pytest.raises(IsADirectoryError):
                component.keep_running(later_s)
    component.keep_running(later_s)
    assert (component.snapshot().state, component.restarts) == ("starting", 1)


def test_a_released_component_stays_stopped(spawner: Spawner) -> None:
    component = supervised(spawner(SLEEP))
    component.release()
    component.kill()
    component.keep_running(time.monotonic())
    component.keep_running(time.monotonic() + 100)
    assert component.snapshot().state == "stopped"


def test_a_port_without_a_listener_is_not_ready() -> None:
    assert not http_ready(free_ports(1)[0])
