"""Forked services are processes as ManagedProcess starts them: their own environment, log, signals and exit code."""

import signal
import sys
from pathlib import Path

from deploy.local.ports import free_ports
from shared.settings import EXIT_CONFIG
from tests import preforked
from tests.harness import ROOT, wait_until
from tests.preforked import PreforkedProcess

MODULE = "services.ingest"


def forked(directory: Path, **settings: str) -> PreforkedProcess:
    """A service without brokers, for which it waits."""
    bootstrap, metrics = free_ports(2)
    environment = {"ONCE_BOOTSTRAP_SERVERS": f"127.0.0.1:{bootstrap}", "ONCE_METRICS_PORT": str(metrics), **settings}
    return PreforkedProcess("ingest", [sys.executable, "-m", MODULE], environment, directory / "ingest.log", cwd=ROOT)


def test_a_refused_setting_ends_it_with_its_exit_code_and_message(tmp_path: Path) -> None:
    refused = forked(tmp_path, ONCE_PRODUCER_ACKS="1")
    refused.start()
    assert refused.wait(60) == EXIT_CONFIG
    assert "ONCE_PRODUCER_ACKS" in refused.log_tail()


def test_it_leads_a_session_of_its_own_and_is_reaped_when_killed(tmp_path: Path) -> None:
    process = forked(tmp_path)
    pid = process.start()
    wait_until(lambda: process.log_tail() != "", "it runs")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3] == str(pid)
    process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not process.running
    assert not Path(f"/proc/{pid}").exists()


def test_it_is_paused_and_resumed_like_a_child(tmp_path: Path) -> None:
    process = forked(tmp_path)
    pid = process.start()
    wait_until(lambda: process.log_tail() != "", "it runs")
    process.pause()
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    process.resume()
    assert process.terminate() is not None


def test_a_service_ends_with_its_forker_and_the_next_one_has_a_new_forker(tmp_path: Path) -> None:
    process = forked(tmp_path)
    process.start()
    wait_until(lambda: process.log_tail() != "", "it runs")
    preforked._forkers[MODULE].kill()
    assert process.wait(10) == -signal.SIGKILL
    process.start()
    assert process.running
    process.kill()
