"""docker-compose.yml agrees with itself. No container may do, see or reach more than docs/deployment.md says."""

import json
import re

import pytest
import yaml

from deploy.compose import credentials, nightly
from deploy.compose.credentials import AUTHORITY, BROKERS, CREDENTIALS, HOLDERS, REDIS_URL
from deploy.local.supervisor.topology import SERVICES
from deploy.security.certificates import open_authority
from shared.settings import OutboxSettings, RuntimeSettings
from tests.compose.document import BUILT, DOCUMENT, ROOT, TEXT, mounts
from tests.compose.document import SERVICES as ALL

ONE_SHOTS = {"credentials", "topics", "operator"}
DEADLINE_S = max(RuntimeSettings.stop_deadline_s, OutboxSettings.stop_deadline_s)


def named_paths(service: str) -> set[str]:
    """Paths of this project's folders that a service's settings, command or configuration name."""
    texts = [json.dumps([ALL[service].get(key) for key in ("environment", "command", "healthcheck")])]
    texts += [(ROOT / source).read_text() for source in mounts(service).values() if (ROOT / source).is_file()]
    if service in BROKERS:
        texts.append((ROOT / "deploy/images/broker.sh").read_text())
    text = "\n".join(texts).replace("${NODE_ID}", service.removeprefix("broker-"))
    return set(re.findall(r"/(?:run|etc|var/lib)/once/[\w./-]*\w", text))


def on(network: str) -> set[str]:
    return {name for name, service in ALL.items() if network in service.get("networks", [])}


def test_no_key_occurs_twice() -> None:
    def check(node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), node.start_mark
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            for child in part if isinstance(part, tuple) else (part,):
                check(child)

    for path in (ROOT / "docker-compose.yml", ROOT / "deploy/compose/files/prometheus.yml"):
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
        assert root is not None
        check(root)


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
    assert not any("docker.sock" in source for source in mounts(service).values())
    assert made["logging"]["options"].keys() == {"max-size", "max-file"}


@pytest.mark.parametrize("service", sorted(set(ALL) - {"redis-exporter"}))
def test_temporary_files_are_in_memory_and_only_java_may_execute_them(service: str) -> None:
    folders = dict(folder.split(":") for folder in ALL[service]["tmpfs"])
    assert all({"nosuid", "nodev"} <= set(options.split(",")) for options in folders.values())
    java = ALL[service]["image"].startswith(("once-broker", "once-reconciliation"))
    assert {"mode=1777", "exec" if java else "noexec"} <= set(folders["/tmp"].split(","))  # noqa: S108 # a container's


@pytest.mark.parametrize("service", sorted(ALL))
def test_images_are_pinned(service: str) -> None:
    image = ALL[service]["image"]
    assert re.fullmatch(r"[a-z0-9_/-]+:v?\d+\.\d+\.\d+[a-z0-9.-]*(@sha256:[0-9a-f]{64})?", image), image
    # Images that are built here are never pulled
    assert ALL[service].get("pull_policy") == ("never" if image in BUILT else None)


def test_each_own_image_is_built_once() -> None:
    built = [service["image"] for service in ALL.values() if "build" in service]
    assert sorted(built) == sorted(BUILT)
    assert {service["image"] for service in ALL.values() if service["image"].startswith("once-")} == set(BUILT)
    assert all(service["build"]["context"] == "." for service in ALL.values() if "build" in service)


@pytest.mark.parametrize("service", sorted(set(ALL) - ONE_SHOTS))
def test_services_have_health_checks_and_are_restarted(service: str) -> None:
    made = ALL[service]
    assert made["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert made["restart"] in {"unless-stopped", "always"}
    grace_s = int(made["stop_grace_period"].removesuffix("s"))
    if service.removesuffix("-chaos") in SERVICES:
        assert grace_s > DEADLINE_S + 5


@pytest.mark.parametrize("service", sorted(ONE_SHOTS))
def test_one_shots_are_not_restarted(service: str) -> None:
    assert ALL[service]["restart"] == "no"


@pytest.mark.parametrize("service", sorted(ALL))
def test_dependencies_are_completed_or_healthy_first(service: str) -> None:
    for needed, how in ALL[service].get("depends_on", {}).items():
        one_shot = needed in ONE_SHOTS
        assert how == {"condition": "service_completed_successfully" if one_shot else "service_healthy"}
        assert needed in ALL


def test_services_start_in_their_order() -> None:
    assert set(ALL["topics"]["depends_on"]) == set(BROKERS)
    for name in (*SERVICES, "operator", "spark-worker", "reconciliation"):
        assert "topics" in ALL[name]["depends_on"]
    assert "redis" in ALL["outbox"]["depends_on"]
    for name in (*BROKERS, "redis", "redis-exporter", "grafana"):
        assert "credentials" in ALL[name]["depends_on"]
    assert "prometheus" in ALL["grafana"]["depends_on"]
    assert "spark-master" in ALL["spark-worker"]["depends_on"]
    assert "spark-worker" in ALL["reconciliation"]["depends_on"]


def test_only_the_gateway_and_the_page_are_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in ALL.items() if "ports" in service}
    assert published == {
        "gateway": ["${PUBLISH_ADDRESS:-127.0.0.1}:${GATEWAY_PORT:-8080}:8080"],
        "balances": ["${PUBLISH_ADDRESS:-127.0.0.1}:${PAGE_PORT:-8090}:8090"],
    }


def test_only_networks_of_published_or_outbound_services_are_external() -> None:
    assert {name for name, network in DOCUMENT["networks"].items() if not (network or {}).get("internal")} == {"edge"}
    services = {*SERVICES, *(name for name in ALL if name.endswith("-chaos"))}
    assert on("edge") == {"gateway", "balances", "outbox", "outbox-chaos"}
    assert on("redis") == {"redis", "outbox", "outbox-chaos", "redis-exporter"}
    assert on("kafka") == {*BROKERS, *services, "topics", "operator"}
    assert on("figures") == {*BROKERS, *services, "redis-exporter", "prometheus", "grafana"}
    assert on("spark") == {*BROKERS, "spark-master", "spark-worker", "reconciliation"}
    assert {name for name, service in ALL.items() if "network_mode" in service} == {"credentials"}
    assert ALL["credentials"]["network_mode"] == "none"


def test_sparks_containers_have_one_address_each() -> None:
    # Driver, worker and master exchange their host names, and listen at one of the host's addresses
    for service in ("spark-master", "spark-worker", "reconciliation"):
        assert ALL[service]["networks"] == ["spark"]
        assert ALL[service]["hostname"] == service
        command = ALL[service]["command"]
        assert service == "reconciliation" or command[command.index("--host") + 1] == service


@pytest.mark.parametrize("service", sorted(set(ALL) - {"credentials"}))
def test_each_container_sees_its_own_credentials_alone(service: str) -> None:
    seen = {source for source in mounts(service).values() if source.startswith(("credentials-", "authority"))}
    holder = {"topics": "operator", "spark-worker": "reconciliation"}.get(service, service.removesuffix("-chaos"))
    assert seen == ({f"credentials-{holder}"} if holder in HOLDERS else set())
    assert all(mounts(service)["/run/once"] == source for source in seen)
    writable = [volume for volume in ALL[service].get("volumes", []) if not volume.endswith(":ro")]
    assert not any(volume.startswith(("credentials-", ".")) for volume in writable)


def test_users_of_other_images_may_read_their_credentials() -> None:
    (group,) = {service["user"].partition(":")[2] for service in ALL.values() if service["image"] in BUILT}
    for service in ALL.values():
        holds = any(volume.startswith("credentials-") for volume in service.get("volumes", []))
        assert (service["image"] not in BUILT and holds) == (service.get("group_add") == [group])


def test_no_secret_is_inline() -> None:
    for service in ALL.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY|TOKEN", name):
                assert name.endswith("_FILE")
                assert value.startswith("/run/once/"), name
    assert "@" not in REDIS_URL
    assert not re.search(r"//[^/\s\"]+:[^/\s\"]+@", TEXT)


def test_credentials_are_made_where_their_holders_volumes_are() -> None:
    assert mounts("credentials") == {
        str(AUTHORITY): "authority",
        **{str(CREDENTIALS / holder): f"credentials-{holder}" for holder in HOLDERS},
    }


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of the files that each holder gets."""
    made = credentials.make(open_authority(tmp_path_factory.mktemp("authority")))
    return {holder: set(files) for holder, files in made.items()}


@pytest.mark.parametrize("service", sorted(set(ALL) - {"credentials"}))
def test_every_named_path_is_mounted_and_its_credentials_are_made(service: str, given: dict[str, set[str]]) -> None:
    places = mounts(service)
    for path in named_paths(service):
        assert any(path == place or path.startswith(f"{place}/") for place in places), path
        if path.startswith("/run/once/"):
            assert path.removeprefix("/run/once/") in given[places["/run/once"].removeprefix("credentials-")]
    for source in places.values():
        assert not source.startswith(".") or (ROOT / source).exists(), source


def test_every_volume_and_network_is_declared_and_used() -> None:
    used = {source for service in ALL for source in mounts(service).values() if not source.startswith(".")}
    assert used == set(DOCUMENT["volumes"])
    assert {network for service in ALL.values() for network in service.get("networks", [])} == set(DOCUMENT["networks"])


def test_every_module_that_a_container_runs_is_a_program() -> None:
    words = [[*ALL[name].get("entrypoint", []), *ALL[name].get("command", [])] for name in ALL]
    words += [ALL[name].get("healthcheck", {}).get("test", []) for name in ALL]
    modules = {found[found.index("-m") + 1] for found in words if "-m" in found}
    assert modules > {"deploy.compose.credentials", "deploy.compose.topics", "deploy.compose.nightly"}
    for module in modules:
        place = ROOT / module.replace(".", "/")
        program = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        assert 'if __name__ == "__main__":' in program.read_text(), module


def test_the_nightly_loop_accepts_its_options() -> None:
    made = ALL["reconciliation"]
    for words in (made["command"], made["healthcheck"]["test"]):
        options = words[words.index("deploy.compose.nightly") + 1 :]
        nightly.main.make_context("nightly", [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in options])


def test_the_example_lists_and_explains_exactly_what_is_interpolated() -> None:
    listed = re.findall(r"^# .+\n(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    interpolated = set(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert set(listed) == interpolated
    assert len({name for name, _ in interpolated}) == len(interpolated) == len(listed)
    assert re.findall(r"^\w+=", (ROOT / ".env.example").read_text(), re.MULTILINE) == [f"{name}=" for name, _ in listed]
    assert re.findall(r"\$(?!\{\w+:-)", TEXT) == []
