"""`once topics create | configure | read`: topics of one's own, settings of the system's, and records of any topic."""

import asyncio
from typing import Any

import click
import msgspec

from deploy.cli.cluster import brokers_option, partitions_of
from deploy.cli.output import answer, json_option, print_rows
from shared.eos.records import Record
from shared.events.catalogue import BY_NAME, PAYMENTS_RAW, own_topic
from shared.events.codec import decoder
from shared.kafka.admin.configs import configure_topics
from shared.kafka.admin.topics import ensure_topics, replicas_of
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_topics


def _own(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name in BY_NAME:
            raise click.BadParameter(f"{name} is in the catalogue: `once up` creates it")
    return names


@click.group()
def topics() -> None:
    """Create topics for a service of one's own, bring the system's up to date, and read records."""


@topics.command(epilog="Exit codes: 0 done (also if they were there), 1 not, 2 wrong usage.")
@click.argument("outputs", metavar="[TOPIC]...", nargs=-1, callback=_own)
@click.option("--changelog", "changelogs", multiple=True, callback=_own, help="A service's state; may be repeated.")
@brokers_option
@json_option()
def create(outputs: tuple[str, ...], changelogs: tuple[str, ...], brokers: Access) -> None:
    """Create TOPICs outside of the catalogue, with as many partitions and replicas as payments.raw.

    A changelog is compacted, an hour late: within it, a new owner can complete a torn transaction.
    """
    if not outputs + changelogs:
        raise click.UsageError("name a topic")
    wanted = [*map(own_topic, outputs), *(own_topic(name, changelog=True) for name in changelogs)]
    partitions = partitions_of(brokers, PAYMENTS_RAW)

    async def make() -> list[str]:
        return await ensure_topics(brokers, partitions, await replicas_of(brokers, PAYMENTS_RAW), topics=wanted)

    created = asyncio.run(make())
    lines = (f"{topic.name}: {'created' if topic.name in created else 'exists'}" for topic in wanted)
    answer({"created": created, "partitions": partitions}, "\n".join(lines))


@topics.command(epilog="Exit codes: 0 done (also if nothing differed), 1 not, 2 wrong usage.")
@click.option("--dry-run", is_flag=True, help="Only print what differs.")
@brokers_option
@json_option()
def configure(dry_run: bool, brokers: Access) -> None:
    """Give the system's topics the settings that this version creates them with; run it after an upgrade.

    A topic keeps the settings that it was created with. Settings that the catalogue does not name stay as they are, and
    so does the number of replicas.
    """
    differences = asyncio.run(configure_topics(brokers, change=not dry_run))
    rows = [one._asdict() for one in differences]
    none = "every topic has the settings of this version"
    answer(
        {"changed": bool(rows) and not dry_run, "settings": rows},
        lambda: print_rows(rows, ("topic", "setting", "found", "wanted"), none=none),
    )


@topics.command(epilog="Exit codes: 0 done (an empty topic is fine), 1 not, 2 wrong usage.")
@click.argument("topic")
@brokers_option
def read(topic: str, brokers: Access) -> None:
    """Print the committed records of TOPIC, one JSON object for each, in order within a partition.

    A value that is JSON is printed as it is, any other one as text.
    """

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        click.echo(b"\n".join(msgspec.json.encode(_shown(record)) for record in records))

    asyncio.run(read_topics(brokers, [topic], take))


_is_json = decoder(Any)


def _shown(record: Record) -> dict[str, object]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _value(record.value),
    }


def _value(value: bytes | None) -> object:
    try:
        return None if value is None else _is_json(value)
    except msgspec.DecodeError:
        return _text(value)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
