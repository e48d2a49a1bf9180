"""A: repeats that no producer id shows, because the application made them: the payment's own identity does."""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.deliveries import duplicates
from deploy.drills.drill import TARGETS, Anomaly, Needs, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.judge import verified
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.stage import Stage
from deploy.local.process import ManagedProcess
from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER, PAYMENTS_DEDUPLICATED, PAYMENTS_RAW
from shared.events.clients import BY_OPERATOR
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.events.validation import key_of
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count

PAYMENTS: Final = 5
LOST: Final = 3
"""The payment whose acknowledgement is lost, from 1."""


def payments(stage: Stage, count: int) -> list[bytes]:
    """Return payments of one house account, so that all are on one partition."""
    return [
        encode_instruction(
            Payment(
                payment_id=f"{stage.name}-{number}",
                debtor="cash@0",
                creditor=f"client-{number}",
                amount_minor=100 + number,
                currency="CZK",
                schema_version=SCHEMA_VERSION,
            )
        )
        for number in range(count)
    ]


@drill(
    "A6",
    "producer-restarted",
    "A restarted producer without a transactional.id stores a record twice; ingest books the payment once",
    needs=Needs.SERVICES,
    control=[Anomaly.DUPLICATE],
    tags=["requests", "idempotence", "services"],
    within_s=180.0,
    reading=["KIP-98", "docs/adr/0006-state-and-progress.md"],
)
async def producer_restarted(stage: Stage) -> None:
    """A program sends a file of payments with an idempotent producer. The third acknowledgement is lost, and the
    program is killed before it sends again. Started again, it gets a new producer id and sends the third payment as a
    new record: payments.raw has it twice. Ingest recognises it by debtor and payment_id, and it is booked once.
    """
    partitions, proxy = await partition_count(stage.access, [PAYMENTS_RAW]), await stage.proxy()
    values = payments(stage, PAYMENTS)
    file = stage.directory / "payments"
    file.write_bytes(b"\n".join(values))
    argv = [sys.executable, "-m", "deploy.drills.clients.from_a_file", proxy.bootstrap_servers, stage.name]
    program = ManagedProcess(
        "producer", [*argv, str(file), str(partitions)], {}, stage.directory / "producer.log", PROJECT_ROOT
    )
    stage.resources.callback(program.kill)
    rule = Rule(api="Produce", client_id=stage.name, first=LOST, action=Drop(Part.ANSWER))
    async with stage.fault(OnRequests(proxy, rule, "answer to Produce lost")) as lost:
        program.start()
        stage.evidence(lost.name, await lost.acted())
        await lost.released()
        pid = program.pid
        program.kill()
        stage.evidence("SIGKILL of the producer", f"process {pid} ended by {program.returncode}")
    program.start()
    await asyncio.to_thread(program.wait, 60)
    stage.expect("exit code of the second producer", program.returncode, 0)
    _, partition = key_of(values[0], partitions)
    log = [
        batch for batch in await log_of(stage.access, PAYMENTS_RAW, partition) if batch.contains(stage.name.encode())
    ]
    stage.expect("sequences of the payments in the log", [batch.base_sequence for batch in log], [0, 1, 2, 0, 1, 2])
    stage.expect("producer ids of the payments in the log", len({batch.producer_id for batch in log}), 2)
    await booked_once(stage, values, [partition], {PAYMENTS_DEDUPLICATED: 1, PAYMENTS_DEAD_LETTER: 0})


async def booked_once(stage: Stage, values: list[bytes], partitions: Iterable[int], refused: dict[str, int]) -> None:
    """Check that each payment was accepted once, that further copies were refused as expected, and all that follows.

    The copies in payments.raw are the control's anomaly.
    """
    found = [value for one in partitions for value in await values_of(stage.access, PAYMENTS_RAW, one)]
    found = [value for value in found if value in values]
    stage.journal.records += len(found)
    stage.anomaly(Anomaly.DUPLICATE, duplicates(one.encode() for one in ids(found)))
    await verified(stage, at_least=len(found))
    stage.expect("payments accepted", sorted(await ids_of(stage, PAYMENTS_ACCEPTED)), sorted(ids(values)))
    for topic, count in refused.items():
        stage.expect(f"records of these payments in {topic}", len(await ids_of(stage, topic)), count)


async def ids_of(stage: Stage, topic: str) -> list[str]:
    """Return the payment_ids of this drill in a topic, as often as they are there."""
    values = await values_of(stage.access, topic, None)
    return list(ids(value for value in values if stage.name.encode() in value))


def ids(values: Iterable[bytes]) -> Iterator[str]:
    """Yield the payment_id in each value."""
    for value in values:
        yield msgspec.json.decode(value)["payment_id"]


@drill(
    "A7",
    "sent-twice",
    "A record that the application sends twice, or to another partition, is stored twice; the payment is booked once",
    needs=Needs.SERVICES,
    control=[Anomaly.DUPLICATE],
    targets=TARGETS,
    tags=["idempotence", "services"],
    within_s=180.0,
    reading=["KIP-98", "docs/adr/0003-dead-letters.md"],
)
async def sent_twice(stage: Stage) -> None:
    """One idempotent producer sends a payment twice, and another payment to a second partition as well. To the brokers,
    each is a record of its own: sequences count batches of one partition, not payments. Ingest recognises the repeat,
    and refuses a payment that is not on its debtor's partition.
    """
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    values = payments(stage, 3)
    key, partition = key_of(values[0], partitions)
    other = (partition + 1) % partitions
    async with IdempotentWriter(stage.access, client_id=stage.name) as writer:
        for value in values:
            await writer.send(PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
        stage.step("the first payment is sent again, the second one to another partition")
        await writer.send(PAYMENTS_RAW, partition, key, values[0], BY_OPERATOR)
        await writer.send(PAYMENTS_RAW, other, key, values[1], BY_OPERATOR)
    await booked_once(stage, values, [partition, other], {PAYMENTS_DEDUPLICATED: 1, PAYMENTS_DEAD_LETTER: 1})
