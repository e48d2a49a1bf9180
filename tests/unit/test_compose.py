"""docker-compose.yml agrees with the local stack, with the settings and with itself; nothing in it is looser than said.

Read from the committed file, by a reader of the tests' own.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.compose import brokers, files, images, places, redis_conf
from deploy.compose.__main__ import main, stale
from deploy.compose.pipeline import CRASHING, ENDPOINTS
from deploy.compose.yaml import plain
from deploy.local.supervisor.monitoring import KAFKA_JOB
from deploy.local.supervisor.topology import (
    HTTP_PORTS,
    OBSERVERS,
    SERVICES,
    VIEW,
    Endpoints,
    observer_specs,
    service_specs,
)
from deploy.security.certificates import Authority
from shared.eos.crash import CrashPoints
from shared.events.catalogue import REPLICATION_FACTOR
from shared.settings import ALL_SETTINGS, OutboxSettings, RuntimeSettings
from tests.harness import ROOT
from tests.yaml_text import read

TEXT = (ROOT / files.COMPOSE_FILE).read_text()
DOCUMENT = read(TEXT)
ALL: dict[str, dict[str, Any]] = DOCUMENT["services"]
ONE_SHOTS = {"credentials", "topics", "operator"}
RUNNING = sorted(set(ALL) - ONE_SHOTS)
OWN = sorted((*SERVICES, *OBSERVERS))
DEADLINE_S = max(RuntimeSettings.stop_deadline_s, OutboxSettings.stop_deadline_s)


def environment(service: str) -> dict[str, str]:
    return dict(ALL[service].get("environment") or {})


def mounts(service: str) -> list[list[str]]:
    return [str(mount).split(":") for mount in ALL[service].get("volumes") or []]


def test_the_generated_files_are_current() -> None:
    assert stale(ROOT) == []
    assert read(TEXT) == {**plain(files.document()), **{key: DOCUMENT[key] for key in DOCUMENT if key[:2] == "x-"}}


def test_a_stale_file_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tmp_path) == 1
    assert main(["--write"], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    (tmp_path / files.COMPOSE_FILE).write_text(TEXT.replace("read_only: true", "read_only: false", 1))
    assert stale(tmp_path) == [files.COMPOSE_FILE]
    assert "docker-compose.yml is stale" in capsys.readouterr().out


def test_every_part_of_the_system_has_a_service() -> None:
    assert {*places.BROKERS, places.REDIS, *SERVICES, *OBSERVERS} <= set(ALL)
    assert len(places.BROKERS) == REPLICATION_FACTOR == 3
    assert {"spark-master", "spark-worker", "reconciliation", "prometheus", "grafana"} <= set(ALL)
    assert "profiles" not in ALL["ledger"]
    by_profile = {name: service["profiles"] for name, service in ALL.items() if "profiles" in service}
    assert {name for found in by_profile.values() for name in found} == {
        "observability",
        "reconciliation",
        "chaos",
        "operator",
    }


def test_services_are_set_as_in_a_secured_local_stack() -> None:
    local = Endpoints(
        "127.0.0.1:1",
        "rediss://127.0.0.1:2/0",
        Path("effects"),
        Path("webhook.key"),
        Path("view"),
        Authority(Path("authority")),
        Path("password"),
    )
    for spec in [*service_specs(SERVICES, local, range(1, 20)), *observer_specs(local, [30])]:
        ours = environment(spec.name)
        more = {"ONCE_METRICS_HOST", "ONCE_LOG_LEVEL"}
        more |= {variable.replace("_PORT", "_HOST") for name, variable in HTTP_PORTS.items() if name == spec.name}
        more |= {"ONCE_GATEWAY_API_KEYS_FILE"} if spec.name == "gateway" else set()
        assert set(ours) == set(spec.environment) | more
        assert ours["ONCE_INSTANCE"] == spec.environment["ONCE_INSTANCE"]
        assert ALL[spec.name]["command"] == ["python", *spec.argv[1:]]


def test_the_page_watches_who_it_watches_locally() -> None:
    watched = environment(VIEW)["ONCE_VIEW_WATCHED"].split(",")
    expected = [f"{name}={name}:{places.METRICS_PORT}" for name in SERVICES if name != VIEW]
    assert watched == expected


def test_brokers_are_set_as_in_a_secured_local_stack() -> None:
    for node_id in range(3):
        local = brokers.local_settings(node_id)
        text = (ROOT / files.MOUNTED / brokers.properties_name(node_id)).read_text()
        ours = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
        differing = {name for name in {*local, *ours} if local.get(name) != ours.get(name)}
        assert differing == {"controller.quorum.voters", "listeners", "advertised.listeners"}
        assert ours["listeners"] == "SSL://:9092,CONTROLLER://:9093"
        assert ours["log.dirs"] in {mount[1] for mount in mounts(f"broker-{node_id}")}


def test_redis_is_set_as_in_a_secured_local_stack() -> None:
    local = redis_conf.local_settings()
    text = (ROOT / files.MOUNTED / "redis.conf").read_text()
    ours = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name for name in {*local, *ours} if local.get(name) != ours.get(name)} == {"bind", "protected-mode"}
    assert ours["appendonly"] == "yes"
    assert (ours["port"], ours["tls-port"], ours["tls-auth-clients"]) == ("0", str(places.REDIS_PORT), "yes")


def test_prometheus_scrapes_everything_under_its_local_name() -> None:
    text = (ROOT / files.MOUNTED / "prometheus.yml").read_text()
    jobs = re.findall(r'job_name: "([^"]+)"', text)
    assert jobs == [*SERVICES, *OBSERVERS, KAFKA_JOB, "redis", "prometheus"]
    targets = re.findall(r'targets: \["([^":]+):(\d+)"\]', text)
    assert [host for host, _ in targets[:-1]] == [*SERVICES, *OBSERVERS, *places.BROKERS, places.REDIS_EXPORTER]
    rules = [mount for mount in mounts("prometheus") if mount[0] == "./deploy/prometheus/rules"]
    assert [mount[1] for mount in rules] == [str(places.CONFIG / "rules")]


@pytest.mark.parametrize("service", sorted(ALL))
def test_every_setting_exists(service: str) -> None:
    known = {item.metadata["variable"] for cls in ALL_SETTINGS for item in cls.__dataclass_fields__.values()}
    used = {name for name in environment(service) if name.startswith("ONCE_")}
    assert used - {"ONCE_PROMETHEUS_URL"} <= known  # Grafana's own, see deploy/grafana


@pytest.mark.parametrize("service", sorted(ALL))
def test_containers_are_confined(service: str) -> None:
    made = ALL[service]
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert made["init"] is True
    assert made["user"].split(":")[0] not in {"0", "root"}
    assert not {"privileged", "cap_add", "pid", "ipc", "devices", "userns_mode"} & set(made)
    assert set(made["deploy"]["resources"]["limits"]) == {"memory", "cpus", "pids"}
    assert not any("docker.sock" in source for source, *_ in mounts(service))
    assert made["logging"]["options"].keys() == {"max-size", "max-file"}


@pytest.mark.parametrize("service", sorted(ALL))
def test_images_are_pinned(service: str) -> None:
    image = ALL[service]["image"]
    assert re.fullmatch(r"[a-z0-9_/-]+:v?\d+\.\d+\.\d+[a-z0-9.-]*", image), image
    if image in images.BUILT:
        assert ALL[service]["pull_policy"] == "never"
    else:
        assert image in images.PUBLIC


def test_each_own_image_is_built_once() -> None:
    built = [service["image"] for service in ALL.values() if "build" in service]
    assert sorted(built) == sorted(images.BUILT)


@pytest.mark.parametrize("service", RUNNING)
def test_what_runs_is_watched_and_kept_running(service: str) -> None:
    made = ALL[service]
    assert made["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert made["restart"] in {"unless-stopped", "always"}
    grace_s = int(made["stop_grace_period"].removesuffix("s"))
    if service.removesuffix("-chaos") in OWN:
        assert grace_s > DEADLINE_S + 5
    for needed, how in (made.get("depends_on") or {}).items():
        one_shot = needed in ONE_SHOTS
        assert how["condition"] == ("service_completed_successfully" if one_shot else "service_healthy")


@pytest.mark.parametrize("service", sorted(ONE_SHOTS))
def test_one_shots_are_not_started_again(service: str) -> None:
    assert ALL[service]["restart"] == "no"


def test_services_wait_for_topics_and_topics_for_every_broker() -> None:
    assert set(ALL["topics"]["depends_on"]) == set(places.BROKERS)
    for service in OWN:
        assert "topics" in ALL[service]["depends_on"]
    assert "redis" in ALL["outbox"]["depends_on"]


def test_only_the_gateway_and_the_page_are_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in ALL.items() if "ports" in service}
    assert published == {
        "gateway": ["${PUBLISH_ADDRESS:-127.0.0.1}:${GATEWAY_PORT:-8080}:8080"],
        "balances": ["${PUBLISH_ADDRESS:-127.0.0.1}:${PAGE_PORT:-8090}:8090"],
    }
    assert str(places.METRICS_PORT) not in str(published)
    assert not any("network_mode" in service for name, service in ALL.items() if name != "credentials")


def test_only_what_is_published_or_calls_the_outside_can_reach_it() -> None:
    assert {name for name, network in DOCUMENT["networks"].items() if not (network or {}).get("internal")} == {"edge"}
    outside = {name for name, service in ALL.items() if "edge" in service.get("networks", [])}
    assert outside - {"outbox-chaos"} == {"gateway", "balances", "outbox"}
    on_redis = {name for name, service in ALL.items() if "redis" in service.get("networks", [])}
    assert on_redis - {"outbox-chaos"} == {"redis", "outbox", "redis-exporter"}


def test_sparks_containers_have_one_address_each() -> None:
    # Driver, worker and master tell each other their host's name, and listen at one of its addresses
    for service in ("spark-master", "spark-worker", "reconciliation"):
        assert ALL[service]["networks"] == ["spark"]
    assert all("spark" in ALL[broker]["networks"] for broker in places.BROKERS)


def test_each_container_sees_its_own_credentials_alone() -> None:
    for service in ALL:
        seen = {source for source, *_ in mounts(service) if source.startswith(("credentials-", "authority"))}
        if service == "credentials":
            assert seen == {"authority", *map(places.credentials_volume, places.HOLDERS)}
            continue
        holder = {"topics": "operator", "spark-worker": "reconciliation"}.get(service, service.removesuffix("-chaos"))
        assert seen <= {places.credentials_volume(holder)}
        assert all(mount[2:] == ["ro"] for mount in mounts(service) if mount[0] in seen)


def test_no_secret_is_inline() -> None:
    for service in ALL:
        for name, value in environment(service).items():
            if re.search(r"PASSWORD|SECRET|KEY|TOKEN", name):
                assert name.endswith("_FILE")
                assert str(value).startswith(str(places.OWN)), name
    assert ENDPOINTS.redis_url == "rediss://redis:6379/0"
    assert not re.search(r"//[^/\s\"]+:[^/\s\"]+@", TEXT)


def test_members_that_crash_are_like_the_others_but_for_their_name_and_point() -> None:
    for name in CRASHING:
        crashing, ordinary = ALL[f"{name}-chaos"], ALL[name]
        differing = {key for key in {*crashing, *ordinary} if crashing.get(key) != ordinary.get(key)}
        assert differing == {"profiles", "environment", "restart"}
        ours, theirs = environment(f"{name}-chaos"), environment(name)
        assert {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)} == {
            "ONCE_INSTANCE",
            "ONCE_CRASH_POINT",
        }
        CrashPoints(ours["ONCE_CRASH_POINT"], lambda _: None)


def test_the_example_lists_exactly_what_is_interpolated() -> None:
    lines = [line for line in (ROOT / files.ENV_EXAMPLE).read_text().splitlines() if line and line[0] != "#"]
    listed = dict(line.split("=", 1) for line in lines)
    assert listed == dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert re.findall(r"\$(?!\{\w+:-)", TEXT) == []


def test_every_volume_and_network_is_declared_and_used() -> None:
    used = {source for service in ALL for source, *_ in mounts(service) if not source.startswith(".")}
    assert used == set(DOCUMENT["volumes"])
    assert {network for service in ALL.values() for network in service.get("networks", [])} == set(DOCUMENT["networks"])


def test_grafana_looks_for_dashboards_where_they_are() -> None:
    provider = (ROOT / "deploy/grafana/provisioning/dashboards/once.yml").read_text()
    (path,) = re.findall(r"^\s+path: (\S+)$", provider, re.MULTILINE)
    assert ["./deploy/grafana/dashboards", path, "ro"] in [list(mount) for mount in mounts("grafana")]


def test_every_module_that_is_run_is_a_program() -> None:
    modules = {
        words[words.index("-m") + 1]
        for service in ALL.values()
        for words in (
            service.get("entrypoint", []),
            service.get("command", []),
            service.get("healthcheck", {}).get("test", []),
        )
        if "-m" in words
    }
    assert modules > {"deploy.compose.credentials", "deploy.compose.topics", "deploy.compose.nightly"}
    for module in modules:
        place = ROOT / module.replace(".", "/")
        program = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        assert 'if __name__ == "__main__":' in program.read_text(), module


def test_every_mounted_file_exists() -> None:
    for service in ALL:
        for source, _, mode in (mount for mount in mounts(service) if mount[0].startswith(".")):
            assert (ROOT / source).exists(), source
            assert mode == "ro"
