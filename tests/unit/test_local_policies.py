"""The local stack's pure rules: restarts, the state file, ports, topology, prerequisites."""

import dataclasses
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from deploy.local import ports, prerequisites
from deploy.local.ports import free_ports
from deploy.local.supervisor import state
from deploy.local.supervisor.component import DELAY_S_MAX, Backoff, may_restart
from deploy.local.supervisor.topology import (
    GATEWAY,
    MONITOR,
    SERVICES,
    VIEW,
    Endpoints,
    UnknownServiceError,
    ports_needed,
    service_specs,
)
from deploy.security.certificates import Authority
from tests.partitions import PARTITIONS

ENDPOINTS = Endpoints(
    "127.0.0.1:9",
    "redis://127.0.0.1:8/0",
    Path("effects"),
    Path("webhook.key"),
    Path("view.sqlite"),
    Path("api-keys"),
    partitions=PARTITIONS,
)


def make_state(pid: int, ticks: int, *, complete: bool = True, component_state: str = "ready") -> state.StackState:
    component = state.ComponentState("ingest", component_state, 1, 0, None, 1.0, "http://127.0.0.1:1")
    return state.StackState(pid, ticks, complete, "127.0.0.1:2", "redis://127.0.0.1:3/0", (component,))


def own_state() -> state.StackState:
    return make_state(os.getpid(), state.start_ticks(os.getpid()) or 0)


def test_delays_double_up_to_their_bound() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay_s(ran_s=1.0) for _ in range(9)]
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[-2:] == [DELAY_S_MAX, DELAY_S_MAX]


def test_a_good_run_resets_the_delays() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay_s(ran_s=29.9)
    assert backoff.next_delay_s(ran_s=29.9) == 6.4
    assert backoff.next_delay_s(ran_s=30.0) == 0.2


@pytest.mark.parametrize(("exit_code", "expected"), [(0, True), (1, True), (75, True), (-9, True), (78, False)])
def test_only_a_refused_setting_prevents_a_restart(exit_code: int, expected: bool) -> None:
    assert may_restart(exit_code) is expected


def test_a_live_supervisors_state_is_read_back(tmp_path: Path) -> None:
    state.write(tmp_path, own_state())
    assert state.running(tmp_path) == own_state()
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


def test_a_dead_supervisors_state_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    state.write(tmp_path, make_state(ended.pid, 1))
    assert state.running(tmp_path) is None
    assert not state.state_path(tmp_path).exists()


def test_a_reused_pid_is_not_the_supervisor(tmp_path: Path) -> None:
    own = own_state()
    state.write(tmp_path, make_state(own.supervisor_pid, own.supervisor_start_ticks - 1))
    assert state.running(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", '{"supervisor_pid": "x"}'])
def test_a_broken_state_file_counts_as_none(tmp_path: Path, content: str) -> None:
    state.state_path(tmp_path).write_text(content)
    assert state.running(tmp_path) is None


def test_the_start_time_is_found_behind_a_name_with_brackets() -> None:
    fields = ["S", *["0"] * 18, "4711", "0"]
    assert state.parse_start_ticks(f"12 (a) b (c)) {' '.join(fields)}") == 4711
    assert state.parse_start_ticks(f"12 (a) {' '.join(['Z', *fields[1:]])}") is None


def test_the_stack_is_ready_when_complete_and_every_component_is() -> None:
    assert make_state(1, 1).ready
    assert not make_state(1, 1, complete=False).ready
    assert not make_state(1, 1, component_state="starting").ready


def test_free_ports_differ_and_stay_below_the_kernels_own_range() -> None:
    given = free_ports(50)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(given)) == 50
    assert max(given) < lowest


def test_a_port_that_another_process_holds_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "from deploy.local import ports; print(ports.free_ports(1)[0], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        given = int(other.stdout.readline())
        free = 100_000 + os.getpid()  # other processes draw lower ports
        drawn = iter([given, free])
        monkeypatch.setattr(ports, "_FIRST", 0)
        monkeypatch.setattr(ports, "_is_free", lambda _: True)
        monkeypatch.setattr(secrets, "randbelow", lambda _: next(drawn))
        assert free_ports(1) == [free]
        other.communicate("\n")
    drawn = iter([given])
    assert free_ports(1) == [given], "a process that has ended holds no port"


def test_every_service_gets_ports_of_its_own() -> None:
    given = list(range(1000, 1000 + ports_needed(SERVICES)))
    specs = service_specs(SERVICES, ENDPOINTS, given)
    taken = [value for spec in specs for name, value in spec.environment.items() if name.endswith("_PORT")]
    assert [spec.name for spec in specs] == list(SERVICES)
    assert sorted(map(int, taken)) == given
    [view], [gateway] = ([spec for spec in specs if spec.name == name] for name in (VIEW, GATEWAY))
    assert gateway.environment["ONCE_GATEWAY_VIEW_URL"] == view.endpoint
    watched = [f"{spec.name}=127.0.0.1:{spec.metrics_port}" for spec in specs if spec.name != VIEW]
    assert view.environment["ONCE_VIEW_WATCHED"].split(",") == watched
    assert watched[-1].startswith(MONITOR)
    assert all(spec.environment["ONCE_BOOTSTRAP_SERVERS"] == "127.0.0.1:9" for spec in specs)


def test_each_service_has_an_identity_of_its_own_or_none_at_all() -> None:
    ports = list(range(1000, 1000 + ports_needed(SERVICES)))
    for authority, directory in ((Authority(Path("/credentials")), "/credentials/"), (None, "")):
        endpoints = dataclasses.replace(ENDPOINTS, authority=authority)
        for spec in service_specs(SERVICES, endpoints, ports):
            files = [spec.environment[name] for name in ("ONCE_TLS_CA_FILE", "ONCE_TLS_IDENTITY_FILE")]
            names = ("authority.pem", f"{spec.name}.pem") if authority else ("", "")
            assert files == [directory + name for name in names]


def test_a_port_is_not_drawn_again_before_its_owner_listens() -> None:
    ports = [port for _ in range(100) for port in free_ports(2)]
    assert len(set(ports)) == len(ports)


def test_an_unknown_service_is_refused() -> None:
    with pytest.raises(UnknownServiceError, match="no service nope; there are gateway"):
        service_specs(["ingest", "nope"], ENDPOINTS, [1, 2, 3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("", 0),
    ],
)
def test_java_versions(text: str, expected: int) -> None:
    assert prerequisites.java_major_version(text) == expected


def fake_program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_missing_programs_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y openjdk-17-jre-headless$"):
        prerequisites.require_java()
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y redis-server$"):
        prerequisites.require_redis()
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y prometheus$"):
        prerequisites.require_prometheus()
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y prometheus-redis-exporter$"):
        prerequisites.require_redis_exporter()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(prerequisites, "_VENV_PIP", made := tmp_path / "pip")
    made.touch()
    assert prerequisites.require_ensurepip() == str(made)
    made.unlink()
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y python3\.\d+-venv$"):
        prerequisites.require_ensurepip()
    assert prerequisites.missing_packages() == [
        f"python3.{sys.version_info.minor}-venv",
        "openjdk-17-jre-headless",
        "redis-server",
        "prometheus",
        "prometheus-redis-exporter",
    ]


def test_programs_that_only_tests_need_are_checked_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites, "_POSTGRESQL", tmp_path)
    monkeypatch.setattr(prerequisites, "_LIBRARIES", tmp_path)
    with pytest.raises(prerequisites.PrerequisiteError, match=r"apt-get install -y chromium$"):
        prerequisites.require_chromium()
    with pytest.raises(prerequisites.PrerequisiteError, match=r"initdb is needed\. Run: .*install -y postgresql$"):
        prerequisites.require_postgresql("initdb")
    with pytest.raises(prerequisites.PrerequisiteError, match=r"libfaketime is needed\. Run: .* -y libfaketime$"):
        prerequisites.require_faketime()
    assert prerequisites.missing_packages(tests=True)[-3:] == ["chromium", "postgresql", "libfaketime"]
    fake_program(tmp_path, "chromium-browser", "true")
    server = tmp_path / "15" / "bin"
    server.mkdir(parents=True)
    fake_program(server, "postgres", "true")
    library = tmp_path / "some-machine" / "faketime" / "libfaketimeMT.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert not {"chromium", "postgresql", "libfaketime"} & set(prerequisites.missing_packages(tests=True))
    assert prerequisites.require_postgresql("postgres") == str(server / "postgres")
    assert prerequisites.require_faketime() == str(library)


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_program(tmp_path, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(prerequisites.PrerequisiteError, match="is Java 11, and 17 or newer is needed"):
        prerequisites.require_java()


def test_installing_keeps_services_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    seen = tmp_path / "seen"
    fake_program(tmp_path, "apt-get", f'echo "$1 $(/bin/sh {policy}; echo $?)" >> {seen}')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites, "_POLICY", policy)
    assert prerequisites.install(["redis-server"]) == 0
    assert seen.read_text().splitlines() == ["update 101", "install 101"]
    assert not policy.exists()


def test_an_operators_own_policy_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("the operator's")
    fake_program(tmp_path, "apt-get", "exit 100")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites, "_POLICY", policy)
    assert prerequisites.install(["redis-server"]) == 100
    assert policy.read_text() == "the operator's"


def test_the_policy_of_an_installation_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    fake_program(tmp_path, "apt-get", f"cp {policy} {tmp_path}/left")
    monkeypatch.setattr(prerequisites, "_POLICY", policy)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    prerequisites.install(["redis-server"])
    (tmp_path / "left").rename(policy)
    assert prerequisites.install(["redis-server"]) == 0
    assert not policy.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_installation_waits_for_apt_and_removes_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    policy = tmp_path / "policy-rc.d"
    seen = tmp_path / "seen"
    fake_program(
        tmp_path, "apt-get", f"sleep 0.3; kill -{number} $PPID; sleep 0.3; /bin/sh {policy}; echo $? >> {seen}"
    )
    monkeypatch.setattr(prerequisites, "_POLICY", policy)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        prerequisites.install(["redis-server"])
    assert ended.value.code == 128 + number
    assert seen.read_text().splitlines() == ["101"]
    assert not policy.exists()
    assert signal.getsignal(number) is before


def test_the_state_has_the_url_of_prometheus_if_it_runs() -> None:
    without = own_state()
    assert without.prometheus_url is None
    part = state.ComponentState("prometheus", "starting", 1, 0, None, 1.0, "http://127.0.0.1:4")
    assert msgspec.structs.replace(without, components=(part,)).prometheus_url == "http://127.0.0.1:4"


def test_the_state_file_is_plain_json(tmp_path: Path) -> None:
    state.write(tmp_path, own_state())
    plain = json.loads(state.state_path(tmp_path).read_text())
    assert plain["components"][0]["name"] == "ingest"
