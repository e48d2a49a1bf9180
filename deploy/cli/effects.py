"""`once effects list | show | resolve`: show effects, and resolve those in doubt or failed.

Invariant: a decision is a record of effects.requests that names the result it was made on, so a late decision
is void; an effect that is done or still being tried cannot be decided on. Whole requests are shown only when one is
asked for: they name people.
"""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cli.effect_records import REQUESTED, WAITING, Found, Listed, find, read_all
from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.writing import where, write
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.effects import EffectState, Resolution, ResolutionAction, encode_request
from shared.events.headers import ORIGIN, SOURCE, Coordinates
from shared.kafka.client.access import Bootstrap

EXIT_NOT_FOUND = 3
_SHOWN_DEFAULT = 50
_UNDECIDED = (EffectState.IN_DOUBT.value, EffectState.FAILED.value)
_STATES = (EffectState.SENT.value, EffectState.FAILED.value, EffectState.IN_DOUBT.value, WAITING)
_DONE = {
    ResolutionAction.CONFIRM: "noted as sent",
    ResolutionAction.RESEND: "to be sent again",
    ResolutionAction.ABANDON: "given up",
}
_REFUSED = {
    EffectState.SENT.value: "was sent: there is nothing to resolve",
    WAITING: "is being tried again by itself: wait, or see `once effects list --state waiting` for why it failed",
    REQUESTED: "has not been taken up yet: see that the outbox runs, with `once status`",
}


def _effect_id(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise click.BadParameter(f"{value} is not an effect_id: give 32 hex digits, as `once effects list` shows them")
    return value


_effect_id_argument = click.argument("effect_id", callback=_effect_id)


@click.group()
def effects() -> None:
    """Show effects, and resolve those in doubt."""


@effects.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only these.  [default: in doubt and failed]")
@click.option("--limit", type=click.IntRange(min=1), default=_SHOWN_DEFAULT, show_default=True, help="The youngest.")
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, counts included.")
def list_effects(state: str | None, limit: int, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """List the effects that a person should look at, the youngest last: those in doubt and those that failed.

    The time is that of the decision; of one that waits, that of the next try.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    book = asyncio.run(read_all(bootstrap_servers, sent_kept=limit if state == EffectState.SENT else 0))
    wanted = _UNDECIDED if state is None else (state,)
    chosen = sorted((effect for name in wanted for effect in book[name]), key=lambda effect: effect.time)[-limit:]
    counts = {name: len(book[name]) for name in (*_UNDECIDED, WAITING)}
    if as_json:
        click.echo(msgspec.json.encode({**counts, "effects": chosen}))
        return
    if chosen:
        Console(width=None if sys.stdout.isatty() else 200).print(_table(chosen))
    summary = f"{counts['in_doubt']:,} in doubt, {counts['failed']:,} failed, {counts['waiting']:,} waiting"
    click.echo(summary, err=True)


def _table(chosen: list[Listed]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in Listed.__struct_fields__:
        table.add_column(column, no_wrap=column in {"effect_id", "state"}, justify="left")
    for effect in chosen:
        table.add_row(*(Text(str(value)) for value in msgspec.structs.astuple(effect)))
    return table


@effects.command("show")
@_effect_id_argument
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_effect(effect_id: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Show one effect with its whole request, for as long as that is kept.

    Exit codes: 0 shown, 1 not, 2 wrong usage, 3 no such effect.
    """
    found = _find(bootstrap_servers, effect_id)
    fields = _fields(found)
    if as_json:
        click.echo(msgspec.json.encode(fields))
        return
    request = fields.pop("request") or {}
    for name, value in {**fields, **request}.items():
        click.echo(f"{name + ':':13} {'' if value is None else value}")
    if not request:
        click.echo("its request is no longer kept", err=True)


def _fields(found: Found) -> dict[str, Any]:
    """Everything that is known of an effect, by name."""
    result, waiting, request = found.result, found.waiting, found.request
    fields: dict[str, Any] = {"effect_id": found.effect_id, "state": found.state}
    if waiting is not None:
        fields |= {
            "attempts": waiting.attempts,
            "revision": waiting.revision,
            "resends": waiting.resends,
            "detail": waiting.detail,
            "next_try": _time(waiting.not_before_ms),
        }
    elif result is not None:
        fields |= {
            "time": _time(result.at_ms),
            "attempts": result.attempts,
            "revision": result.revision,
            "resends": result.resends,
            "reason": result.reason,
            "detail": result.detail,
        }
    fields |= found.coordinates()
    shown = None if request is None else msgspec.structs.asdict(request)
    if shown is not None:
        del shown["effect_id"]
    return {**fields, "request": shown}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


@effects.command("resolve")
@_effect_id_argument
@click.option("--confirm", "action", flag_value=ResolutionAction.CONFIRM.value, help="It was sent.")
@click.option(
    "--resend",
    "action",
    flag_value=ResolutionAction.RESEND.value,
    help="Send it again. By e-mail, it may arrive a second time; that is counted.",
)
@click.option("--abandon", "action", flag_value=ResolutionAction.ABANDON.value, help="It is not to be sent any more.")
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resolve(effect_id: str, action: str | None, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Resolve an effect that is in doubt or has failed; the outbox carries it out.

    The decision names the result that it was made on. If there is a newer one by the time that the outbox reads it,
    because another operator decided first, it is void and nothing is done. Look with `once effects show`, and decide
    again. Deciding twice is safe therefore.

    Exit codes: 0 written, 1 not, or there is nothing to decide, 2 wrong usage, 3 no such effect.
    """
    if action is None:
        raise click.UsageError("give one of --confirm, --resend and --abandon")
    found = _find(bootstrap_servers, effect_id)
    record, result, request = found.result_record, found.result, found.request
    if record is None or result is None or found.state in _REFUSED:
        raise click.ClickException(f"{effect_id} {_REFUSED[found.state]}")
    origin = found.header(ORIGIN)
    if request is None or origin is None:
        raise click.ClickException(f"{effect_id}: its result lacks its request or origin, so no outbox wrote it")
    source = Coordinates(EFFECTS_RESULTS, record.partition, record.offset).encode()
    metadata = write(
        bootstrap_servers,
        EFFECTS_REQUESTS,
        record.partition,
        request.account.encode(),
        encode_request(Resolution(effect_id, result.revision, action, request)),
        ((ORIGIN, origin), (SOURCE, source)),
    )
    if as_json:
        answer = {"effect_id": effect_id, "action": action, "revision": result.revision, "at": where(metadata)}
        click.echo(msgspec.json.encode(answer))
    else:
        click.echo(f"{effect_id} {_DONE[ResolutionAction(action)]} ({where(metadata)})")


def _find(bootstrap_servers: Bootstrap, effect_id: str) -> Found:
    found = asyncio.run(find(bootstrap_servers, effect_id))
    if found is None:
        click.echo(f"no effect {effect_id}: `once effects list` shows those to look at", err=True)
        sys.exit(EXIT_NOT_FOUND)
    return found
