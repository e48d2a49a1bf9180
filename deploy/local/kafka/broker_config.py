"""Configuration of a local broker: server.properties and its logging. Pure.

The durability settings are those of a production cluster: three replicas, two in sync, no unclean election. Partitions
of the internal topics, timeouts and thread counts are small because the machine is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.ports import LOOPBACK
from deploy.security.certificates import Authority
from deploy.security.principals import MAPPING_RULES, broker, super_users
from shared.events.catalogue import REPLICATION_FACTOR, min_insync_replicas

SESSION_TIMEOUT_MS = 3_000

_FOR_A_SMALL_MACHINE = """\
# Three brokers share this machine's cores: fewer threads each (defaults 3, 8 and 2 per data directory).
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=1
background.threads=4
# Segment files take 10 MB of index each, preallocated, by default: six partitions times some twenty topics add up.
log.index.size.max.bytes=2097152
# The cleaner's deduplication buffer is 128 MB by default, a quarter of this heap.
log.cleaner.dedupe.buffer.size=16777216
"""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Ports of one node on loopback: for clients and other brokers, and for the KRaft quorum; node ids run from 0."""

    node_id: int
    port: int
    controller_port: int


def server_properties(
    node_id: int, nodes: Sequence[BrokerAddress], data_directory: Path, authority: Authority | None = None
) -> str:
    """The server.properties of one combined broker and controller; no `authority` is no TLS and no access rules."""
    own = nodes[node_id]
    voters = ",".join(f"{node.node_id}@{LOOPBACK}:{node.controller_port}" for node in nodes)
    replicas = min(REPLICATION_FACTOR, len(nodes))
    in_sync = min_insync_replicas(replicas)
    protocol = "PLAINTEXT" if authority is None else "SSL"
    return f"""\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners={protocol}://{LOOPBACK}:{own.port},CONTROLLER://{LOOPBACK}:{own.controller_port}
advertised.listeners={protocol}://{LOOPBACK}:{own.port}
inter.broker.listener.name={protocol}
log.dirs={_escaped(data_directory)}

# Durability, as in production.
default.replication.factor={replicas}
min.insync.replicas={in_sync}
unclean.leader.election.enable=false
# Topics come from the catalogue only: a misspelt name is an error, not a new topic.
auto.create.topics.enable=false
num.partitions=6
# The record is the history: nothing expires unless a topic says so.
log.retention.ms=-1

# The internal topics have 50 partitions by default: 300 replicas to open before the cluster is of use.
offsets.topic.num.partitions=6
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=6
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}

# A group starts at once; the default waits 3 s for more members.
group.initial.rebalance.delay.ms=0
# A member without a heartbeat for 6 s (default 45 s) is removed; the new owner of its work waits for that.
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=100
# A member learns of a rebalance by its next heartbeat (default 5 s).
group.consumer.heartbeat.interval.ms=1000
# A rebalance begins at once, without waiting for more changes (default 1 s).
group.consumer.assignment.interval.ms=0
# The floor of session.timeout.ms in the older protocol, which the view speaks: 6 s by default.
group.min.session.timeout.ms=1000
# The most a client may ask for as transaction.timeout.ms. It bounds how long an open transaction can hold readers back.
transaction.max.timeout.ms=60000
# Look for timed-out transactions every second instead of every ten.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000

# A killed or paused broker is fenced, and its partitions led by others, after this long (default 9 s).
broker.session.timeout.ms={SESSION_TIMEOUT_MS}
broker.heartbeat.interval.ms=500
# An idle controller writes a record to its log every five seconds instead of twice a second (KIP-835).
metadata.max.idle.interval.ms=5000
# A machine that is gone refuses no connection. Until one has failed, requests wait for it, those included that add
# partitions to a transaction, although another broker coordinates that by now (defaults 10 s and 30 s).
socket.connection.setup.timeout.ms=1000
socket.connection.setup.timeout.max.ms=1000
# A follower that is back asks again after 200 ms (default 1 s), so it is in sync sooner.
replica.fetch.backoff.ms=200
# Preferred leaders come back 10 s after an imbalance instead of after five minutes.
leader.imbalance.check.interval.seconds=10

{_FOR_A_SMALL_MACHINE}{"" if authority is None else _security(node_id, nodes, authority)}"""


def _security(node_id: int, nodes: Sequence[BrokerAddress], authority: Authority) -> str:
    """Mutual TLS for clients, brokers and controllers, and what no rule allows is denied."""
    return f"""
listener.security.protocol.map=SSL:SSL,CONTROLLER:SSL
ssl.client.auth=required
ssl.enabled.protocols=TLSv1.3,TLSv1.2
ssl.keystore.type=PEM
ssl.keystore.location={_escaped(authority.identity_file(broker(node_id)))}
ssl.truststore.type=PEM
ssl.truststore.location={_escaped(authority.ca_file)}
ssl.principal.mapping.rules={MAPPING_RULES}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users={super_users([node.node_id for node in nodes])}
"""


def _escaped(path: Path) -> str:
    """A path as a value of Java properties, which are Latin-1 and end at a line's end."""
    text = str(path).replace("\\", "\\\\")
    return "".join(character if " " <= character <= "~" else _utf16(character) for character in text)


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def log4j2_xml() -> str:
    """The log4j2 configuration: warnings to stdout."""
    return """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN">
  <Appenders>
    <Console name="stdout" target="SYSTEM_OUT">
      <PatternLayout pattern="[%d{ISO8601}] %p %m (%c)%n"/>
    </Console>
  </Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="stdout"/></Root>
    <!-- Start, registration and shutdown: one line each. -->
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
    <!-- Why a transaction's markers are sent again, or no longer: nothing else says it. -->
    <Logger name="kafka.coordinator.transaction" level="INFO"/>
    <Logger name="org.apache.kafka.common.utils.AppInfoParser" level="ERROR"/>
  </Loggers>
</Configuration>
"""
