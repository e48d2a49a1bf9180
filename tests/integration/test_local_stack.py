"""The local stack with real brokers, Redis and a service, and its commands."""

import asyncio
import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import PROJECT_ROOT
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.kafka.probe import BrokerNotAnsweringError
from deploy.local.redis.server import LocalRedis
from deploy.local.supervisor import state
from deploy.local.supervisor.stack import Stack, StackNotReadyError
from deploy.security.certificates import open_authority
from shared.events.catalogue import PAYMENTS_RAW, TOPICS
from shared.kafka.admin.configs import topic_config
from shared.kafka.admin.installation import ownership
from shared.kafka.admin.topics import ensure_topics
from tests.harness import wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import full

PATIENT_S = 10.0  # a broker that takes over partitions answers late


@pytest.fixture(scope="module")
def kafka(replicated: LocalKafka) -> LocalKafka:
    """A cluster whose brokers the tests stop."""
    return replicated


def brokers_seen(kafka: LocalKafka) -> frozenset[int]:
    """Return the brokers that broker 0 sees as alive, or none if it does not answer in time."""
    try:
        return kafka.view(0).brokers
    except BrokerNotAnsweringError:
        return frozenset()


@full
def test_a_killed_broker_is_noticed_and_restarts_at_its_address(kafka: LocalKafka) -> None:
    kafka.wait_in_sync()
    bootstrap_servers, pid = kafka.bootstrap_servers, kafka.processes[1].pid
    kafka.processes[1].kill()
    try:
        wait_until(lambda: brokers_seen(kafka) == {0, 2}, "broker 0 notices", 20)
        assert all(p.leader != 1 for p in kafka.view(0, PATIENT_S).partitions)
    finally:
        kafka.processes[1].start()
        kafka.wait_in_sync()
    assert kafka.bootstrap_servers == bootstrap_servers
    assert kafka.processes[1].pid not in {None, pid}
    assert kafka.view(1, PATIENT_S).brokers == {0, 1, 2}


def test_brokers_map_the_archive_of_their_classes(kafka: LocalKafka) -> None:
    """Without the archive a broker takes twice the time to start."""
    for pid in kafka.pids:
        assert re.search(r"/brokers-[0-9a-f]{16}\.jsa\n", Path(f"/proc/{pid}/maps").read_text())


@full
def test_a_paused_broker_is_fenced_and_catches_up(kafka: LocalKafka) -> None:
    kafka.wait_in_sync()
    pid = kafka.processes[2].pid
    kafka.processes[2].pause()
    try:
        wait_until(lambda: brokers_seen(kafka) == {0, 1}, "broker 2 fenced", 20)
    finally:
        kafka.processes[2].resume()
        kafka.wait_in_sync()
    assert kafka.processes[2].pid == pid


@full
def test_a_stopped_broker_hands_its_partitions_over_first(kafka: LocalKafka) -> None:
    kafka.wait_in_sync()
    kafka.processes[0].terminate(20)
    try:
        view = kafka.view(1, PATIENT_S)
        assert view.brokers == {1, 2}
        assert view.partitions
        assert {p.leader for p in view.partitions} <= {1, 2}
    finally:
        kafka.processes[0].start()
        kafka.wait_in_sync()


def test_redis_keeps_port_and_data_over_a_restart(tmp_path: Path) -> None:
    redis = LocalRedis(tmp_path)
    command = ["redis-cli", "-p", str(redis.port)]
    redis.start()
    try:
        redis.wait_ready()
        subprocess.run([*command, "set", "k", "v"], check=True, capture_output=True)
        redis.stop()
        assert not redis.answers()
        redis.start()
        redis.wait_ready()
        got = subprocess.run([*command, "get", "k"], check=True, capture_output=True, text=True)
        assert got.stdout == "v\n"
        redis.pause()
        assert not redis.answers(0.2)
        redis.resume()
        redis.wait_ready()
    finally:
        redis.kill()


@pytest.mark.parametrize("name", ["a b-prüfung", 'quoted "\\', "plain"])
def test_a_secured_redis_starts_in_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    redis = LocalRedis(directory / "redis", authority=open_authority(directory / "credentials"))
    redis.start()
    try:
        redis.wait_ready()
        assert list((directory / "redis" / "data").iterdir())
    finally:
        redis.kill()


@full
def test_a_broker_restarts_in_a_directory_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    directory = tmp_path / "a b-prüfung \\ 🙂"
    kafka = LocalKafka(directory, 1, heap_mb=256, metrics=True, credentials=directory / "credentials")
    try:
        for _ in range(2):
            kafka.start()
            kafka.wait_ready()
            kafka.stop()
        assert [path.name for path in directory.glob("broker-*/__cluster_metadata-0")] == ["__cluster_metadata-0"]
    finally:
        kafka.kill()


@full
def test_the_stack_restarts_a_killed_service_even_after_errors_of_the_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0

    def fail_once(_: Stack) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError(errno.ENOSPC, "no space left on device")

    stack = Stack(tmp_path, services=["ingest"], brokers=1, on_state=fail_once)
    with stack:
        stack.wait_ready(120)
        ingest = stack.services["ingest"]
        pid = ingest.process.pid
        ingest.kill()
        wait_until(lambda: ingest.process.pid not in {None, pid}, "restarted", 20)
        shown = ingest.snapshot()
        assert (shown.restarts, shown.last_exit_code) == (1, -signal.SIGKILL)
        stack.wait_ready(120)
        assert "the stack's state: [Errno 28] no space left on device; it is tried again" in caplog.messages
        log_path, ingest.process.log_path = ingest.process.log_path, tmp_path  # a directory
        ingest.kill()
        refused = f"ingest: [Errno 21] Is a directory: '{tmp_path}'; it is tried again"
        wait_until(lambda: refused in caplog.messages, "the start is refused", 20)
        ingest.process.log_path = log_path
        stack.wait_ready(120)
        assert caplog.messages.count(refused) == 1
        assert ingest.snapshot().restarts == 2
        ingest.process.env["ONCE_PRODUCER_ACKS"] = "1"
        ingest.kill()
        with pytest.raises(StackNotReadyError, match=r"(?s)ingest is failed .*exit code 78.*settings refused"):
            stack.wait_ready(120)
        del ingest.process.env["ONCE_PRODUCER_ACKS"]
        ingest.start()
        stack.wait_ready(120)
    assert [component.process.pid for component in stack.components] == [None] * 3
    assert ingest.process.returncode == 0, "ingest did not stop gracefully"


class Cli:
    """Runs the commands as an operator does, each in its own process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        code = f"from deploy.cli.{command} import {command}; {command}(prog_name='once {command}')"
        argv = [sys.executable, "-c", code, *arguments, "--dir", str(self.directory)]
        return subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120, check=False)

    def up(self, *arguments: str) -> dict[str, Any]:
        done = self("up", "--services", "none", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def component(self, name: str) -> dict[str, Any]:
        shown = json.loads(self("status", "--json").stdout)
        found: dict[str, Any] = next(part for part in shown["components"] if part["name"] == name)
        return found


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    commands = Cli(tmp_path / "once")
    yield commands
    left = state.read(commands.directory)
    if left is not None and state.is_alive(left):
        os.kill(left.supervisor_pid, signal.SIGKILL)


def pids(found: dict[str, Any]) -> list[int]:
    return [part["pid"] for part in found["components"]]


def gone(which: list[int]) -> bool:
    return all(state.start_ticks(pid) is None for pid in which)


@full
def test_the_commands_of_the_stack(cli: Cli) -> None:
    assert cli("status").returncode == 1
    assert cli("down").returncode == 0

    first = cli.up()
    assert first["ready"]
    assert [part["name"] for part in first["components"]] == [
        *("broker-0", "broker-1", "broker-2", "redis"),
        *("monitor", "redis-exporter", "prometheus"),
    ]
    assert cli("status").returncode == 0
    again = cli("up")
    assert again.returncode == 0
    assert "already running" in again.stderr
    assert first["bootstrap_servers"] in again.stdout
    assert f"prometheus {cli.component('prometheus')['endpoint']}\n" in again.stdout
    assert cli("logs", "prometheus").returncode == 0

    os.kill(pids(first)[1], signal.SIGKILL)
    wait_until(lambda: cli.component("broker-1")["restarts"] == 1, "broker-1 restarted", 20)
    wait_until(lambda: cli("status").returncode == 0, "ready again", 30)
    assert cli.component("broker-1")["last_exit_code"] == -signal.SIGKILL

    running = pids(json.loads(cli("status", "--json").stdout))
    os.kill(first["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: gone(running), "the supervisor's children ended", 10)
    assert cli("status").returncode == 1
    assert not state.state_path(cli.directory).exists()

    second = cli.up("--no-monitoring", "--secure")
    assert second["supervisor_pid"] != first["supervisor_pid"]
    assert first["tls"] is None
    assert Path(second["tls"]["identity_file"]).name == "operator.pem"
    assert "kafka is secure" in cli("status").stdout
    assert "(mutual TLS, access rules)" in cli("up", "--secure").stdout
    assert len(pids(second)) == 4
    assert cli("logs", "broker-0", "-n", "1").stdout.count("\n") == 1
    assert cli("logs", "broker-0").stdout.count("\n") > 50  # a search in its output finds what is older
    assert "broker-2" in cli("logs", "nope").stderr
    assert cli("down", "--wipe").returncode == 0
    assert gone([second["supervisor_pid"], *pids(second)])
    assert not (cli.directory / "data").exists()
    assert not state.state_path(cli.directory).exists()


def brokers_of(found: dict[str, Any]) -> list[str]:
    return [part["name"] for part in found["components"] if part["name"].startswith("broker-")]


@full
def test_one_broker_is_enough_and_its_risk_is_stated(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = cli("up", "--services", "none", "--no-monitoring", "--brokers", "1", "--json")
    assert begun.returncode == 0, begun.stderr
    assert "one replica: if a broker's data is lost, its part of the ledger is lost" in begun.stderr
    first = json.loads(begun.stdout)
    assert brokers_of(first) == ["broker-0"]
    assert asyncio.run(topic_config(first["bootstrap_servers"], PAYMENTS_RAW, "min.insync.replicas")) == "1"
    assert cli("down").returncode == 0

    assert brokers_of(cli.up("--no-monitoring")) == ["broker-0"], "the number of brokers changed"
    assert cli("down").returncode == 0
    other = cli("up", "--services", "none", "--no-monitoring", "--brokers", "3")
    assert other.returncode == 1
    assert "is of a cluster of 1: start as many brokers, or delete it" in other.stderr
    monkeypatch.setenv("ONCE_REPLICATION_FACTOR", "3")
    refused = cli("up", "--services", "none", "--no-monitoring")
    assert refused.returncode == 1
    assert "ONCE_REPLICATION_FACTOR is 3: set it from 1 to the number of brokers" in refused.stderr


def former_data(directory: Path, payments_before: int) -> None:
    """Make the data of a stack from before clients owned accounts."""
    kafka = LocalKafka(directory / "data" / "kafka", 1, heap_mb=256, log_directory=directory / "logs")
    kafka.start()
    try:
        kafka.wait_ready(120)
        asyncio.run(ensure_topics(kafka.access, PARTITIONS, 1, topics=TOPICS))
        asyncio.run(send_raw(kafka.access, payments("before", payments_before)))
    finally:
        kafka.stop()


def asked(up: dict[str, Any], key: str | None) -> int:
    """Return the status of a request to the gateway for a payment that is not there."""
    [endpoint] = [part["endpoint"] for part in up["components"] if part["name"] == "gateway"]
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{endpoint}/payments/none?partition=0&offset=9999", headers=headers)  # noqa: S310
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=30)  # noqa: S310 # loopback
    return answer.value.code


@full
def test_a_stack_makes_the_client_local_and_enforces_ownership_over_data_from_before(cli: Cli) -> None:
    former_data(cli.directory, 30)
    words = ("--service", "gateway", "--no-monitoring", "--json")
    keys = []
    for _ in range(2):
        begun = cli("up", *words)
        assert begun.returncode == 0, begun.stderr
        up = json.loads(begun.stdout)
        file = Path(up["local_key_file"])
        assert file.is_relative_to(cli.directory)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        keys.append(file.read_text())
        assert [asked(up, key) for key in (None, "once_another", keys[0])] == [401, 401, 404]
        assert str(file) in cli("status").stdout
        found = asyncio.run(ownership(up["bootstrap_servers"]))
        assert sum(found.raw_from) == 30
        assert cli("down").returncode == 0
    assert keys[0] == keys[1]
