"""The controllers' quorum, as its leader describes it."""

from typing import Final

from aiokafka.errors import LeaderNotAvailableError

from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values

# For any broker, which forwards it to the quorum's leader; needs the right to describe the cluster
_DESCRIBE_QUORUM: Final = Request(
    "DescribeQuorum", 1, {"Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]}
)


async def describe_quorum(cluster: Cluster) -> Values:
    """Ask some broker for the quorum: fields as in DescribeQuorumResponse's PartitionData. LeaderId is known.

    Raises:
        KafkaError: the broker's answer is an error, or the quorum temporarily has no leader.
    """
    response = await cluster.send_to_any(_DESCRIBE_QUORUM)
    check(response["ErrorCode"], "the quorum cannot be described")
    [topic] = response["Topics"]
    [quorum] = topic["Partitions"]
    check(quorum["ErrorCode"], "the quorum cannot be described")
    if quorum["LeaderId"] not in {voter["ReplicaId"] for voter in quorum["CurrentVoters"]}:
        raise LeaderNotAvailableError("the quorum has no leader now")
    described: Values = quorum
    return described
