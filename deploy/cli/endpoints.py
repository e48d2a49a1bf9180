"""`once endpoints list | test | disable | enable | replay`: destinations of effects, and those that fail for days.

Invariant: an endpoint's state is a record of reference.endpoints under the name of its lane in the outbox. A replay
writes one decision for each failed effect that names the result it was made on, so a repeated replay sends nothing
twice.
"""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deploy.cli.cluster import brokers_option, partitions_of, write
from deploy.cli.effects import decision_on
from deploy.cli.output import answer, failing_on, iso_ms, iso_time, json_option, operator, print_rows
from services.outbox.lanes import MAIL_LANE, endpoint_of, lane_name
from services.outbox.outcomes import Delivered
from services.outbox.sinks.channels import open_sinks
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING, REFERENCE_ENDPOINTS
from shared.events.effects import (
    WAITING_PREFIX,
    Channel,
    EffectFailure,
    EffectKind,
    EffectRequest,
    EffectResult,
    EffectState,
    ResolutionAction,
    channel_of,
    decode_result,
    decode_waiting,
    effect_id,
)
from shared.events.endpoints import Endpoint, EndpointState, decode_endpoint, encode_endpoint
from shared.events.headers import Headers
from shared.events.partitions import partition_for
from shared.kafka.client.access import Access
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_table, read_topics
from shared.settings import OutboxSettings

_COLUMNS = ("endpoint", "state", "failing_since", "waiting", "changed", "by", "detail")
_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."
_WIDTH_CHARS = 200


def _endpoint(value: str) -> str:
    if value == MAIL_LANE:
        return value
    try:
        channel = channel_of(value)
        name = endpoint_of(value) if channel is Channel.WEBHOOK else lane_name(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; {MAIL_LANE} is the mail server") from error
    if channel is Channel.EMAIL:
        raise click.BadParameter(f"{value} has no state of its own: {MAIL_LANE} is the mail server of all recipients")
    return name


_endpoint_argument = click.argument("endpoint", type=_endpoint)


@click.group()
def endpoints() -> None:
    """Show endpoints of effects, test, disable and enable them, and send what failed again."""


class _Waiting:
    """How many effects wait for each endpoint."""

    def __init__(self) -> None:
        self._endpoints: dict[bytes, str] = {}

    def take(self, _topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            key = record.key or b""
            if record.value is None:
                self._endpoints.pop(key, None)
            elif key.startswith(WAITING_PREFIX):
                self._endpoints[key] = lane_name(decode_waiting(record.value).request.destination)

    def counts(self) -> Counter[str]:
        return Counter(self._endpoints.values())


@endpoints.command("list")
@brokers_option
@json_option()
def list_endpoints(brokers: Access) -> None:
    """List the endpoints that fail, are disabled, or have effects waiting.

    `failing_since` is the first of its failures without a success between them, once they last a minute.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    waiting = _Waiting()

    async def read() -> dict[str, Endpoint]:
        await read_topics(brokers, [EFFECTS_WAITING], waiting.take)
        return await read_table(brokers, REFERENCE_ENDPOINTS, decode_endpoint)

    known, counts = asyncio.run(read()), waiting.counts()
    unknown = Endpoint(EndpointState.ENABLED.value, 0, by="")
    rows = [_row(name, known.get(name, unknown), counts[name]) for name in sorted({*known, *counts})]
    shown = [row for row in rows if row["waiting"] or row["failing_since"] or row["state"] == EndpointState.DISABLED]
    answer(
        {"endpoints": shown},
        lambda: print_rows(
            shown, _COLUMNS, width_chars=_WIDTH_CHARS, no_wrap=("endpoint",), none="none fails or waits"
        ),
    )


def _row(name: str, endpoint: Endpoint, waiting: int) -> dict[str, Any]:
    return {
        "endpoint": name,
        "state": endpoint.state,
        "failing_since": iso_time(endpoint.failing_since_ms) if endpoint.failing_since_ms else "",
        "waiting": waiting,
        "changed": iso_time(endpoint.at_ms) if endpoint.at_ms else "",
        "by": endpoint.by,
        "detail": endpoint.detail,
    }


@endpoints.command("disable", epilog=_EXIT_CODES)
@_endpoint_argument
@click.option("--reason", default="", help="Why, for other operators.")
@brokers_option
@json_option()
def disable_endpoint(endpoint: str, reason: str, brokers: Access) -> None:
    """Make no further call to ENDPOINT, a webhook's URL, file:name, or smtp for the mail server.

    Its effects, those that wait included, go to effects.dead-letter. They are kept: see `once endpoints replay`.
    """
    _write(brokers, endpoint, EndpointState.DISABLED, reason)


@endpoints.command("enable", epilog=_EXIT_CODES)
@_endpoint_argument
@click.option("--reason", default="", help="Why, for other operators.")
@brokers_option
@json_option()
def enable_endpoint(endpoint: str, reason: str, brokers: Access) -> None:
    """Call ENDPOINT again, and count the time that it fails from now on."""
    _write(brokers, endpoint, EndpointState.ENABLED, reason)


def _write(brokers: Access, name: str, state: EndpointState, reason: str) -> None:
    record = Endpoint(state.value, _now_ms(), by="operator", detail=f"{operator()}: {reason}" if reason else operator())
    partition = partition_for(name, partitions_of(brokers, REFERENCE_ENDPOINTS))
    at = write(brokers, REFERENCE_ENDPOINTS, partition, name.encode(), encode_endpoint(record))
    answer({"endpoint": name, "state": state.value, "at": at}, f"{name} is {state.value} ({at})")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@endpoints.command("test")
@click.argument("url")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="The outbox' key, as in its setting ONCE_WEBHOOK_KEY_FILE.",
)
@click.option("--allowed-networks", default="", help="As in the outbox' setting ONCE_WEBHOOK_ALLOWED_NETWORKS.")
@json_option()
def test_endpoint(url: str, key_file: Path, allowed_networks: str) -> None:
    """Send one signed sample to the webhook URL, and print its answer. The sample is of a payment that does not exist.

    Its amount is 0, and its accounts and payment are named `sample`.

    Exit codes: 0 accepted, 1 not, 2 wrong usage.
    """
    sample = _sample(url)
    with failing_on(ValueError):
        if channel_of(url) is not Channel.WEBHOOK:
            raise ValueError(f"{url} is not a webhook: only webhooks can be tested")
        settings = OutboxSettings(
            bootstrap_servers="",
            redis_url="",
            webhook_key_file=str(key_file),
            webhook_allowed_networks=allowed_networks,
        )
        sink = open_sinks(settings, time.time)[Channel.WEBHOOK]

    async def send() -> tuple[str, str, float]:
        async with sink:
            begun_s = time.monotonic()
            outcome = await sink.deliver(sample)
            return type(outcome).__name__.lower(), outcome.detail, time.monotonic() - begun_s

    outcome, detail, seconds = asyncio.run(send())
    found = {"endpoint": endpoint_of(url), "outcome": outcome, "answer": detail, "took_ms": round(seconds * 1000)}
    answer(found, f"{outcome} after {seconds * 1000:.0f} ms: {detail}")
    if outcome != Delivered.__name__.lower():
        raise click.exceptions.Exit(1)


def _sample(url: str) -> EffectRequest:
    now = datetime.now(UTC)
    return EffectRequest(
        effect_id=effect_id(
            f"sample:{now.timestamp()}".encode(), EffectKind.EVENT.value, "debit", url, installation=""
        ),
        kind=EffectKind.EVENT.value,
        event="debit",
        destination=url,
        account="sample",
        payment_id="sample",
        debtor="sample",
        creditor="sample",
        value_date=now.date().isoformat(),
        amount_minor=0,
        currency="EUR",
    )


class _Failed:
    """Failed and doubtful effects of one endpoint, by id, with their last results; and effects that wait."""

    def __init__(self, endpoint: str, since_ms: int) -> None:
        self._endpoint = endpoint
        self._since_ms = since_ms
        self._results: dict[str, tuple[Record, EffectResult]] = {}
        self._waiting: set[str] = set()

    def take(self, topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            key = (record.key or b"").decode()
            if topic == EFFECTS_WAITING:
                effect = key.removeprefix(WAITING_PREFIX.decode())
                (self._waiting.add if record.value is not None else self._waiting.discard)(effect)
                continue
            self._results.pop(key, None)
            if record.value is not None:
                result = decode_result(record.value)
                if self._is_wanted(result):
                    self._results[key] = record, result

    def _is_wanted(self, result: EffectResult) -> bool:
        if result.state == EffectState.SENT or result.reason == EffectFailure.ABANDONED or result.request is None:
            return False
        if result.state == EffectState.IN_DOUBT and self._endpoint == MAIL_LANE:
            return False  # it may be a second mail: a person decides
        return result.at_ms >= self._since_ms and lane_name(result.request.destination) == self._endpoint

    def resolutions(self) -> list[tuple[int, bytes, bytes, Headers]]:
        """Partition, key, value and headers of each decision, in the order in which the effects failed."""
        failed = [found for key, found in self._results.items() if key not in self._waiting]
        failed.sort(key=lambda found: found[1].at_ms)
        decisions = (decision_on(*found, found[1].request, ResolutionAction.RESEND.value) for found in failed)
        return [decision for decision in decisions if decision is not None]


@endpoints.command("replay")
@_endpoint_argument
@click.option("--since", "since_ms", type=iso_ms, required=True, help="ISO 8601; UTC unless it names an offset.")
@brokers_option
@json_option()
def replay_endpoint(endpoint: str, since_ms: int, brokers: Access) -> None:
    """Send effects of ENDPOINT again that failed or came to be in doubt since a time.

    Left out are those that an operator abandoned, and mails in doubt: a mail server does not recognise a repeat, so
    `once effects resolve` is for each.

    Exit codes: 0 all decisions are written (none is fine), 1 not all, 2 wrong usage. It may be given again: a decision
    on a result that is not the latest is void.
    """
    failed = _Failed(endpoint, since_ms)

    async def replay() -> int:
        known = await read_table(brokers, REFERENCE_ENDPOINTS, decode_endpoint)
        if endpoint in known and known[endpoint].state == EndpointState.DISABLED:
            raise click.ClickException(f"{endpoint} is disabled: `once endpoints enable {endpoint}` first")
        await read_topics(brokers, [EFFECTS_WAITING, EFFECTS_RESULTS], failed.take)
        decisions = failed.resolutions()
        async with IdempotentWriter(brokers) as writer:
            for decision in decisions:
                await writer.write(EFFECTS_REQUESTS, *decision)
            await writer.flush()
        return len(decisions)

    count = asyncio.run(replay())
    answer({"endpoint": endpoint, "resent": count}, f"{count:,} effects of {endpoint} are to be sent again")
