"""The brokers' configuration, the lock of their jars, and the metadata probe's wire format."""

import hashlib
import socket
import struct
import threading
from pathlib import Path

import pytest

from deploy.local import jars
from deploy.local.kafka.broker_config import BrokerAddress, server_properties
from deploy.local.kafka.cluster import KafkaNotReadyError, LocalKafka, brokers_of
from deploy.local.kafka.probe import BrokerNotAnsweringError, ask, decode_metadata_response, encode_metadata_request
from deploy.local.ports import free_ports
from deploy.security.certificates import Authority
from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import encode_response

NODES = [BrokerAddress(0, 9000, 9001), BrokerAddress(1, 9010, 9011), BrokerAddress(2, 9020, 9021)]


def properties(
    node_id: int, nodes: list[BrokerAddress], authority: Authority | None = None, data: Path = Path("/data")
) -> dict[str, str]:
    lines = server_properties(node_id, nodes, data, authority).splitlines()
    pairs = [line.partition("=")[::2] for line in lines if line and not line.startswith("#")]
    assert len(dict(pairs)) == len(pairs), "a setting occurs twice"
    return dict(pairs)


def test_a_node_knows_itself_and_the_whole_quorum() -> None:
    found = properties(1, NODES)
    assert found["node.id"] == "1"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9010"
    assert found["controller.quorum.voters"] == "0@127.0.0.1:9001,1@127.0.0.1:9011,2@127.0.0.1:9021"


def test_durability_is_that_of_production() -> None:
    found = properties(0, NODES)
    assert found["default.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert found["transaction.state.log.replication.factor"] == "3"
    assert found["transaction.state.log.min.isr"] == "2"
    assert found["offsets.topic.replication.factor"] == "3"
    assert found["unclean.leader.election.enable"] == "false"
    assert found["auto.create.topics.enable"] == "false"


def test_a_single_broker_requires_one_replica() -> None:
    found = properties(0, NODES[:1])
    assert found["default.replication.factor"] == "1"
    assert found["min.insync.replicas"] == "1"


def test_every_listener_is_on_loopback() -> None:
    found = properties(2, NODES)
    addresses = [part.partition("://")[2] for part in found["listeners"].split(",")]
    assert [address.partition(":")[0] for address in addresses] == ["127.0.0.1", "127.0.0.1"]


def test_a_path_is_escaped_as_in_java_properties() -> None:
    authority = Authority(Path("/prüfung"))
    found = properties(0, NODES[:1], authority, Path("/a b=c\\\n🙂"))
    assert found["log.dirs"] == r"/a b=c\\\u000a\ud83d\ude42"
    assert found["ssl.keystore.location"] == r"/pr\u00fcfung/broker-0.pem"
    assert found["ssl.truststore.location"] == r"/pr\u00fcfung/authority.pem"


def test_a_secure_node_requires_certificates_and_denies_by_default() -> None:
    found = properties(1, NODES, Authority(Path("/credentials")))
    assert found["listeners"] == "SSL://127.0.0.1:9010,CONTROLLER://127.0.0.1:9011"
    assert found["inter.broker.listener.name"] == "SSL"
    assert found["listener.security.protocol.map"] == "SSL:SSL,CONTROLLER:SSL"
    assert found["ssl.client.auth"] == "required"
    assert found["ssl.keystore.location"] == "/credentials/broker-1.pem"
    assert found["ssl.truststore.location"] == "/credentials/authority.pem"
    assert found["allow.everyone.if.no.acl.found"] == "false"
    assert found["super.users"] == "User:broker-0;User:broker-1;User:broker-2;User:operator"
    assert not {name for name in properties(1, NODES) if name.startswith(("ssl.", "super.", "authorizer."))}


def test_the_committed_lock_names_one_kafka_with_checksums_and_no_registry() -> None:
    text = jars.LOCK_PATH.read_text()
    locked = jars.parse_lock(text)
    versions = {jar.version for jar in locked if jar.group == "org.apache.kafka"}
    assert versions == {"4.3.1"}
    assert all(len(jar.sha256) == 64 for jar in locked)
    assert "://" not in text


def test_the_agent_has_a_lock_of_its_own_and_is_not_among_the_brokers_jars() -> None:
    text = jars.JMX_LOCK_PATH.read_text()
    (agent,) = jars.parse_lock(text)
    assert agent.coordinates == "io.prometheus.jmx:jmx_prometheus_javaagent:1.0.1"
    assert agent.file_name not in {jar.file_name for jar in jars.parse_lock(jars.LOCK_PATH.read_text())}
    assert "://" not in text


def lock_of(sha256: str) -> str:
    return f"""
[[dependencies]]
groupId = "org.example"
artifactId = "thing"
version = "1.0"
packaging = "jar"
sha256 = "{sha256}"
"""


@pytest.fixture
def cached_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar in the Maven cache of an empty home, with a lock of its checksum and no reachable repository."""
    path = tmp_path / ".m2" / "repository" / "org" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"as locked")
    lock = tmp_path / "jgo.lock.toml"
    lock.write_text(lock_of(hashlib.sha256(b"as locked").hexdigest()))
    (closed,) = free_ports(1)
    config = tmp_path / ".config" / "jgo.conf"
    config.parent.mkdir()
    config.write_text(f"[repositories]\nnowhere = http://127.0.0.1:{closed}/\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("M2_REPO", raising=False)
    return path


@pytest.fixture
def lock(cached_jar: Path, tmp_path: Path) -> Path:
    """The lock that names that jar."""
    assert cached_jar.exists()
    return tmp_path / "jgo.lock.toml"


def test_a_cached_jar_is_used_when_it_is_the_locked_one(cached_jar: Path, lock: Path) -> None:
    assert jars.resolve(lock) == [cached_jar]
    assert jars.resolve(lock, besides=frozenset({"thing-1.0.jar"})) == []


def test_a_cached_jar_that_differs_is_never_used(cached_jar: Path, lock: Path) -> None:
    cached_jar.write_bytes(b"something else")
    with pytest.raises(jars.JarError, match=r"org\.example:thing:1\.0 cannot be downloaded"):
        jars.resolve(lock)
    assert not cached_jar.exists()


def test_spark_gets_the_jars_that_pyspark_does_not_bring() -> None:
    names = {path.name.rsplit("-", 1)[0] for path in jars.spark_jars()}
    assert names == {
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    }


@pytest.mark.parametrize(("text", "message"), [("", "names no jars"), (lock_of(""), "has no sha256")])
def test_an_unsafe_lock_is_refused(text: str, message: str) -> None:
    with pytest.raises(jars.JarError, match=message):
        jars.parse_lock(text)


def partition(index: int, leader: int, replicas: list[int], isr: list[int]) -> Values:
    return {"PartitionIndex": index, "LeaderId": leader, "ReplicaNodes": replicas, "IsrNodes": isr}


def response(*partitions: Values) -> bytes:
    brokers = [{"NodeId": node_id, "Host": "127.0.0.1", "Port": 9000 + node_id} for node_id in (0, 2)]
    topics = [{"Name": "payments.raw", "Partitions": list(partitions)}]
    values = {"Brokers": brokers, "ControllerId": 2, "Topics": topics}
    return encode_response("Metadata", 1, values, correlation_id=1)


def test_a_metadata_response_is_read() -> None:
    view = decode_metadata_response(response(partition(0, 0, [0, 2], [0, 2]), partition(1, 2, [2, 0], [2])))
    assert view.brokers == {0, 2}
    assert view.controller == 2
    assert [(p.topic, p.partition, p.leader, p.isr) for p in view.partitions] == [
        ("payments.raw", 0, 0, (0, 2)),
        ("payments.raw", 1, 2, (2,)),
    ]


@pytest.mark.parametrize(
    ("leader", "isr", "expected"), [(0, [2, 0], True), (0, [0], False), (-1, [0, 2], False), (0, [], False)]
)
def test_in_sync_means_a_leader_and_all_replicas(leader: int, isr: list[int], expected: bool) -> None:
    assert decode_metadata_response(response(partition(0, leader, [0, 2], isr))).in_sync is expected


def test_a_metadata_request_says_its_length() -> None:
    request = encode_metadata_request()
    assert struct.unpack(">ihh", request[:8]) == (len(request) - 4, 3, 1)


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\x00", struct.pack(">i", 100) + b"short", struct.pack(">i", -1), struct.pack(">ii", 4, 1)]
)
def test_a_truncated_response_counts_as_none(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BrokerNotAnsweringError):
            ask(server.getsockname()[1])
        thread.join()


def test_a_refused_connection_counts_as_no_response() -> None:
    with pytest.raises(BrokerNotAnsweringError):
        ask(free_ports(1)[0])


def test_a_directory_keeps_its_number_of_brokers_even_where_one_lost_its_storage(tmp_path: Path) -> None:
    assert brokers_of(tmp_path) == 0
    (tmp_path / "config").mkdir()
    for node_id in range(3):
        (tmp_path / "config" / f"broker-{node_id}.properties").touch()
    (tmp_path / "broker-0").mkdir()
    (tmp_path / "broker-0" / "meta.properties").touch()
    assert brokers_of(tmp_path) == 3
    with pytest.raises(KafkaNotReadyError, match="is of a cluster of 3: start as many brokers"):
        LocalKafka(tmp_path, brokers=1).start()
