"""docker-compose.yml and the files that it mounts agree with the local stack, and with what other code shares.

They are kept by hand: every setting of the local stack for a service, a broker or Redis must be in them as well.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import yaml

from deploy.compose import credentials
from deploy.compose.credentials import BROKERS, REDIS_URL
from deploy.local.kafka.broker_config import BrokerAddress, log4j2_xml, server_properties
from deploy.local.redis.server import redis_config, secured_config
from deploy.local.supervisor.monitoring import KAFKA_JOB, Target, exporter_access, prometheus_yml
from deploy.local.supervisor.topology import (
    MONITOR,
    SERVICES,
    VIEW,
    Endpoints,
    connections,
    service_specs,
)
from deploy.security import redis_users
from deploy.security.certificates import Authority
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER
from services.balances.dashboard import parse_watched
from shared.eos.crash import CrashPoints
from shared.events.catalogue import REPLICATION_FACTOR
from shared.http.hosts import Hosts
from shared.kafka.admin.rules import RECONCILIATION
from shared.settings import (
    ALL_SETTINGS,
    GatewaySettings,
    IngestSettings,
    InstallationSettings,
    LedgerSettings,
    MonitorSettings,
    OutboxSettings,
    ReconcileSettings,
    RuntimeSettings,
    Settings,
    ViewSettings,
    load,
)
from tests.compose.document import PROFILES, ROOT, environment, mounts
from tests.compose.document import SERVICES as ALL
from tests.partitions import PARTITIONS

MOUNTED = ROOT / "deploy" / "compose" / "files"
OWN = Path("/run/once")
METRICS_PORT = 9100
PORTS = {"gateway": (METRICS_PORT, 8080), VIEW: (METRICS_PORT, 8090)}
SECURE = Authority(OWN)
ENDPOINTS = Endpoints(
    bootstrap_servers=",".join(f"{name}:9092" for name in BROKERS),
    redis_url=REDIS_URL,
    effects_directory=Path("/var/lib/once/effects"),
    webhook_key_file=OWN / credentials.WEBHOOK_KEY,
    view_file=Path("/var/lib/once/view/balances.sqlite"),
    api_keys_file=OWN / credentials.API_KEYS,
    authority=SECURE,
    redis_password_file=OWN / credentials.OUTBOX_PASSWORD,
    partitions=PARTITIONS,
)
LOCAL = service_specs(SERVICES, ENDPOINTS, [port for name in SERVICES for port in PORTS.get(name, (METRICS_PORT,))])
CRASHING = [name.removesuffix("-chaos") for name in ALL if name.endswith("-chaos")]


def as_interpolated(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings with the default of each variable."""
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in settings.items()}


def compared(service: str) -> dict[str, str]:
    """The settings of a service, with the default number of partitions."""
    settings = environment(service)
    return settings | as_interpolated({"ONCE_PARTITIONS": settings["ONCE_PARTITIONS"]})


def place_of(service: str, volume: str) -> str:
    """Path at which a service mounts a volume."""
    (place,) = (place for place, source in mounts(service).items() if source == volume)
    return place


def lines(text: str, separator: str) -> dict[str, str]:
    """The settings of a configuration file, each there once."""
    found = [line.split(separator, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert len({name for name, _ in found}) == len(found)
    return dict(found)


def mebibytes(size: str) -> int:
    number, unit = re.fullmatch(r"(?:\$\{\w+:-)?(\d+)([mg])b?\}?", size).groups()  # type: ignore[union-attr] # fails
    return int(number) * {"m": 1, "g": 1024}[unit]


def memory(service: str) -> int:
    return mebibytes(ALL[service]["deploy"]["resources"]["limits"]["memory"])


def test_every_part_of_the_system_has_a_service() -> None:
    assert {*BROKERS, REDIS, *SERVICES, "credentials", "topics"} <= {n for n in ALL if "profiles" not in ALL[n]}
    assert len(BROKERS) == REPLICATION_FACTOR == 3
    assert set(PROFILES) == {"observability", "reconciliation", "chaos", "operator"}
    for profile, names in {
        "observability": {REDIS_EXPORTER, "prometheus", "grafana"},
        "reconciliation": {"spark-master", "spark-worker", RECONCILIATION},
        "operator": {OPERATOR},
    }.items():
        assert {name for name in ALL if ALL[name].get("profiles") == [profile]} == names


@pytest.mark.parametrize("spec", LOCAL, ids=lambda spec: spec.name)
def test_services_are_set_as_in_a_secured_local_stack(spec: Any) -> None:
    containers = {"ONCE_METRICS_HOST": "0.0.0.0", "ONCE_LOG_LEVEL": "${LOG_LEVEL:-INFO}"}  # noqa: S104 # a container's
    own = {
        "gateway": {
            "ONCE_GATEWAY_HOST": "0.0.0.0",  # noqa: S104 # likewise
            "ONCE_GATEWAY_RATE_PER_S": "${GATEWAY_RATE_PER_S:-1000}",
            "ONCE_GATEWAY_HOSTS": "${GATEWAY_HOSTS:-}",
            "ONCE_GATEWAY_VIEW_URL": f"http://{VIEW}:8090",
        },
        VIEW: {
            "ONCE_VIEW_HOST": "0.0.0.0",  # noqa: S104 # likewise
            "ONCE_VIEW_HOSTS": f"{VIEW},${{VIEW_HOSTS:-}}",
            "ONCE_VIEW_API_KEYS_FILE": "/run/once/api-keys",  # on loopback, the local stack's asks for none
            "ONCE_VIEW_WATCHED": ",".join(f"{name}={name}:{METRICS_PORT}" for name in SERVICES if name != VIEW),
        },
        MONITOR: {"ONCE_MONITOR_HOSTS": MONITOR},
        "outbox": {
            "ONCE_WEBHOOK_FORMAT": "${WEBHOOK_FORMAT:-standard}",
            "ONCE_WEBHOOK_ALLOWED_NETWORKS": "${WEBHOOK_ALLOWED_NETWORKS:-}",
            "ONCE_WEBHOOK_PROXY": "${WEBHOOK_PROXY:-}",
        },
    }.get(spec.name, {})
    assert compared(spec.name) == {**spec.environment, **containers, **own}
    assert ALL[spec.name]["command"] == ["python", *spec.argv[1:]]
    assert ALL[spec.name]["image"] == ALL["credentials"]["image"]


def test_commands_and_the_reconciliation_are_connected_as_in_a_secured_local_stack() -> None:
    assert compared("topics") == compared(OPERATOR) == connections(OPERATOR, ENDPOINTS)
    assert ALL[OPERATOR]["entrypoint"] == ["once"]
    assert f"effects:{ENDPOINTS.effects_directory}:ro" in ALL[OPERATOR]["volumes"]
    worker, master = ALL["spark-worker"], ALL["spark-master"]
    port = master["command"][master["command"].index("--port") + 1]
    url = f"spark://{master['hostname']}:{port}"
    assert worker["command"][-1] == url
    lake = place_of(RECONCILIATION, "lake")
    assert place_of("spark-worker", "lake") == lake
    assert environment("spark-worker")["SPARK_LOCAL_DIRS"] == place_of("spark-worker", "scratch")
    assert compared(RECONCILIATION) == {
        **connections(RECONCILIATION, ENDPOINTS),
        "ONCE_SPARK_MASTER": url,
        "ONCE_SPARK_DRIVER_HOST": ALL[RECONCILIATION]["hostname"],
        "ONCE_SPARK_MEMORY": "1g",
        "ONCE_LAKE": lake,
    }


def test_topics_and_services_have_one_number_of_partitions() -> None:
    clients = {name for name in ALL if "ONCE_BOOTSTRAP_SERVERS" in environment(name)}
    assert {"topics", OPERATOR, *SERVICES} <= clients
    variable = f"${{PARTITIONS:-{InstallationSettings.partitions}}}"
    assert {environment(name).get("ONCE_PARTITIONS") for name in clients} == {variable}


@pytest.mark.parametrize(
    ("service", "cls"),
    [
        ("gateway", GatewaySettings),
        ("ingest", IngestSettings),
        ("transform", RuntimeSettings),
        ("ledger", LedgerSettings),
        ("outbox", OutboxSettings),
        (VIEW, ViewSettings),
        ("monitor", MonitorSettings),
        (RECONCILIATION, ReconcileSettings),
    ],
)
def test_every_required_setting_has_a_value_of_its_type(service: str, cls: type[Settings]) -> None:
    load(cls, as_interpolated(environment(service)))


@pytest.mark.parametrize("service", sorted(ALL))
def test_every_setting_exists(service: str) -> None:
    known = {item.metadata["variable"] for cls in ALL_SETTINGS for item in cls.__dataclass_fields__.values()}
    used = {name for name in environment(service) if name.startswith("ONCE_")}
    assert used - {"ONCE_PROMETHEUS_URL"} <= known  # Grafana's own, see deploy/grafana


def test_brokers_are_set_as_in_a_secured_local_stack() -> None:
    nodes = [BrokerAddress(node_id, 9092, 9093) for node_id in range(len(BROKERS))]
    for node_id, name in enumerate(BROKERS):
        local = server_properties(node_id, nodes, Path("/var/lib/once/kafka"), SECURE)
        ours = lines((MOUNTED / "broker.properties").read_text().replace("${NODE_ID}", str(node_id)), "=")
        assert ours == {
            **lines(local, "="),
            "controller.quorum.voters": ",".join(f"{number}@{host}:9093" for number, host in enumerate(BROKERS)),
            "listeners": "SSL://:9092,CONTROLLER://:9093",
            "advertised.listeners": f"SSL://{name}:9092",
        }
        assert ALL[name]["command"] == ["/etc/once/broker.properties", str(node_id)]
        assert ALL[name]["hostname"] == name
        assert mounts(name)[ours["log.dirs"]] == name
        assert ALL[name]["healthcheck"]["test"] == ["CMD-SHELL", f"nc -w 2 {name} 9092 </dev/null"]
    assert (MOUNTED / "log4j2.xml").read_text() == log4j2_xml()


def test_brokers_differ_by_their_names_and_numbers_only() -> None:
    first = {**ALL[BROKERS[0]], "command": None}
    del first["build"]
    for name in BROKERS[1:]:
        assert json.loads(json.dumps({**ALL[name], "command": None}).replace(name, BROKERS[0])) == first


def test_redis_is_set_as_in_a_secured_local_stack() -> None:
    local = redis_config(6379, Path("/data"), access=secured_config(6379, SECURE, OWN / credentials.USERS_FILE))
    ours = lines((MOUNTED / "redis.conf").read_text(), " ")
    expected = {**lines(local, " "), "bind": "*", "protected-mode": "no"}
    assert {name: split(value) for name, value in ours.items()} == {
        name: split(value) for name, value in expected.items()
    }
    assert (ours["appendonly"], ours["port"], ours["tls-auth-clients"]) == ("yes", "0", "yes")
    assert ALL[REDIS]["command"] == ["redis-server", "/etc/once/redis.conf"]
    assert mounts(REDIS)[ours["dir"]] == REDIS
    script = (MOUNTED / "redis-healthy.sh").read_text()
    assert f"$(cat {OWN / credentials.HEALTH_PASSWORD})" in script
    assert f"-h {REDIS} -p {ours['tls-port']} --user {redis_users.OPERATOR.name} " in script
    assert ALL[REDIS]["healthcheck"]["test"] == ["CMD", "sh", "/etc/once/redis-healthy.sh"]


def test_the_exporter_signs_in_to_redis_as_in_a_secured_local_stack() -> None:
    access = exporter_access(SECURE.tls(REDIS_EXPORTER), OWN / credentials.EXPORTER_PASSWORDS)
    address, listen, timeout, *words = ALL[REDIS_EXPORTER]["command"]
    assert (address, listen) == (f"-redis.addr={REDIS_URL}", "-web.listen-address=:9121")
    assert timeout == "-connection-timeout=1s"
    assert words == access


def test_the_view_reaches_the_monitor_by_a_name_that_it_admits() -> None:
    [watched] = [one for one in parse_watched(environment(VIEW)["ONCE_VIEW_WATCHED"]) if one.service == MONITOR]
    settings = load(MonitorSettings, as_interpolated(environment(MONITOR)))
    assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", watched.port)  # noqa: S104 # a container's
    assert Hosts(settings.hosts.split(",")).known(f"{watched.host}:{watched.port}")
    assert "figures" in set(ALL[VIEW]["networks"]) & set(ALL[MONITOR]["networks"])
    assert "ports" not in ALL[MONITOR]


def test_prometheus_scrapes_the_same_targets_as_locally_under_the_same_names() -> None:
    ports = {KAFKA_JOB: 9404, "redis": 9121, "prometheus": 9090}
    hosts = {f"{name}-0": name for name in SERVICES} | {name: name for name in BROKERS}
    hosts |= {"redis-0": REDIS_EXPORTER, "prometheus-0": "127.0.0.1"}
    targets = [Target(name, f"{name}-0", METRICS_PORT) for name in SERVICES]
    targets += [Target(KAFKA_JOB, name, ports[KAFKA_JOB], {"broker": str(node)}) for node, name in enumerate(BROKERS)]
    targets += [Target(name, f"{name}-0", ports[name]) for name in ("redis", "prometheus")]

    def plain(document: Any) -> Any:
        for job in document["scrape_configs"]:
            job.setdefault("scrape_interval", document["global"]["scrape_interval"])
        return document

    ours = plain(yaml.safe_load((MOUNTED / "prometheus.yml").read_text()))
    for job in ours["scrape_configs"]:
        for found in job["static_configs"]:
            host, _, port = found["targets"][0].partition(":")
            assert host == hosts[found["labels"]["instance"]]
            found["targets"] = [f"127.0.0.1:{port}"]
    assert ours == plain(yaml.safe_load(prometheus_yml(targets, Path("/etc/once/rules/*.yml"))))
    assert mounts("prometheus")["/etc/once/rules"] == "./deploy/prometheus/rules"
    assert {
        "--config.file=/etc/once/prometheus.yml",
        "--web.listen-address=:9090",
        f"--storage.tsdb.path={place_of('prometheus', 'prometheus')}",
    } < set(ALL["prometheus"]["command"])


def test_grafana_looks_for_dashboards_its_password_and_prometheus_where_they_are() -> None:
    provider = (ROOT / "deploy/grafana/provisioning/dashboards/once.yml").read_text()
    (path,) = re.findall(r"^\s+path: (\S+)$", provider, re.MULTILINE)
    assert mounts("grafana")[path] == "./deploy/grafana/dashboards"
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
    assert environment("grafana")["GF_SECURITY_ADMIN_PASSWORD__FILE"] == str(OWN / credentials.GRAFANA_PASSWORD)
    assert environment("grafana")["ONCE_PROMETHEUS_URL"] == "http://prometheus:9090"
    assert place_of("grafana", "grafana") == "/var/lib/grafana"


@pytest.mark.parametrize("service", [spec.name for spec in LOCAL] + ["spark-master", "spark-worker"])
def test_health_is_asked_for_at_the_port_that_answers(service: str) -> None:
    *python, program, port, path = ALL[service]["healthcheck"]["test"]
    command = ALL[service]["command"]
    served = command[command.index("--webui-port") + 1] if "spark" in service else str(METRICS_PORT)
    assert (python, port) == (["CMD", "python", "-I", "-S"], served)
    assert path == ("/json/" if "spark" in service else "/readyz")
    assert (ROOT / program.removeprefix("/opt/once/app/")).is_file()


@pytest.mark.parametrize(
    ("service", "address"),
    [(REDIS_EXPORTER, ":9121/health"), ("prometheus", ":9090/-/ready"), ("grafana", ":3000/api/health")],
)
def test_health_of_other_images_is_checked_with_wget(service: str, address: str) -> None:
    assert ALL[service]["healthcheck"]["test"] == ["CMD", "wget", "-q", "-O", "/dev/null", f"http://127.0.0.1{address}"]


def test_members_that_crash_are_like_the_others_but_for_their_name_and_point() -> None:
    assert CRASHING == ["ingest", "transform", "ledger", "outbox"]
    for name in CRASHING:
        ours = environment(f"{name}-chaos")
        CrashPoints(ours["ONCE_CRASH_POINT"], lambda _: None)
        named = {"ONCE_INSTANCE": "chaos", "ONCE_CRASH_POINT": ours["ONCE_CRASH_POINT"]}
        assert ALL[f"{name}-chaos"] == {
            **ALL[name],
            "environment": environment(name) | named,
            "profiles": ["chaos"],
            "restart": "always",
        }


def test_memory_is_enough_for_what_is_configured_to_take_it() -> None:
    assert memory(REDIS) > 2 * mebibytes(lines((MOUNTED / "redis.conf").read_text(), " ")["maxmemory"])
    assert memory(BROKERS[0]) >= 2 * mebibytes(environment(BROKERS[0])["HEAP"])
    worker = ALL["spark-worker"]["command"]
    assert memory("spark-worker") > mebibytes(worker[worker.index("--memory") + 1])
    assert memory(RECONCILIATION) > mebibytes(environment(RECONCILIATION)["ONCE_SPARK_MEMORY"])
