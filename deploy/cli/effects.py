"""`once effects list | show | resolve`: show effects, and resolve those in doubt or failed.

Invariant: a decision is a record of effects.requests that names the result it was made on, so a late decision
is void; an effect that is done or still being tried cannot be decided on. The last record of a key counts; an effect
that waits is waiting, whatever an older result says. Whole requests are shown only when one is asked for: they name
people.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from deploy.cli.cluster import brokers_option, write
from deploy.cli.output import answer, as_json, fields_text, iso_time, json_option, note, nothing, print_rows
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import (
    WAITING_PREFIX,
    EffectRequest,
    EffectResult,
    EffectState,
    Resolution,
    ResolutionAction,
    Waiting,
    decode_request,
    decode_result,
    decode_waiting,
    encode_request,
    leaves_doubt,
)
from shared.events.headers import ORIGIN, SOURCE, Coordinates, Headers, header
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_topics

WAITING = "waiting"
REQUESTED = "requested"
_WIDTH_CHARS = 200
_COLUMNS = ("effect_id", "state", "time", "attempts", "kind", "account", "destination", "reason", "detail")
_TRIED = ("at", "took_ms", "answer")
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
_PLACES = {"asked_at": EFFECTS_REQUESTS, "decided_at": EFFECTS_RESULTS, "dead_letter": EFFECTS_DEAD_LETTER}

T = TypeVar("T")
_Row = dict[str, Any]


def _effect_id(value: str) -> str:
    if len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise click.BadParameter(f"{value} is not an effect_id: give 32 hex digits, as `once effects list` shows them")
    return value


_effect_id_argument = click.argument("effect_id", type=_effect_id)


def _listed(effect_id: str, found: EffectResult | Waiting) -> _Row:
    """An effect in a list, with the fields of its request that identify it, empty where that is no longer kept."""
    request = found.request
    return {
        "effect_id": effect_id,
        "state": WAITING if isinstance(found, Waiting) else found.state,
        "time": iso_time(found.not_before_ms if isinstance(found, Waiting) else found.at_ms),
        "attempts": found.attempts,
        "kind": "" if request is None else request.kind,
        "account": "" if request is None else request.account,
        "destination": "" if request is None else request.destination,
        "reason": "" if isinstance(found, Waiting) else found.reason,
        "detail": found.detail,
    }


class _Book:
    """Effects that wait, are in doubt or have failed, by id; of those sent, the youngest."""

    def __init__(self, sent_kept: int) -> None:
        self._sent_kept = sent_kept
        self._sent: dict[str, _Row] = {}
        self._sent_order: list[tuple[int, str]] = []
        self._decided: dict[str, _Row] = {}
        self._waiting: dict[str, _Row] = {}

    def take(self, topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            key, value = record.key or b"", record.value
            effect_id = key.removeprefix(WAITING_PREFIX).decode()
            if topic == EFFECTS_RESULTS:
                self._take_result(effect_id, None if value is None else decode_result(value))
            elif key.startswith(WAITING_PREFIX):
                self._waiting.pop(effect_id, None)
                if value is not None:
                    self._waiting[effect_id] = _listed(effect_id, decode_waiting(value))

    def _take_result(self, effect_id: str, found: EffectResult | None) -> None:
        self._decided.pop(effect_id, None)
        if found is None:
            return
        if found.state != EffectState.SENT:
            self._decided[effect_id] = _listed(effect_id, found)
        elif self._sent_kept and effect_id not in self._sent:
            self._sent[effect_id] = _listed(effect_id, found)
            heapq.heappush(self._sent_order, (found.at_ms, effect_id))
            if len(self._sent) > self._sent_kept:
                del self._sent[heapq.heappop(self._sent_order)[1]]

    def by_state(self) -> dict[str, list[_Row]]:
        found: dict[str, list[_Row]] = {state.value: [] for state in EffectState}
        for effect_id, effect in self._decided.items():
            if effect_id not in self._waiting:
                found[effect["state"]].append(effect)
        return {**found, EffectState.SENT.value: list(self._sent.values()), WAITING: list(self._waiting.values())}


@click.group()
def effects() -> None:
    """Show effects, and resolve those in doubt."""


@effects.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only these.  [default: in doubt and failed]")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The youngest.")
@brokers_option
@json_option("Print one JSON object, counts included.")
def list_effects(state: str | None, limit: int, brokers: Access) -> None:
    """List the effects that a person should look at, the youngest last: those in doubt and those that failed.

    The time is that of the decision; of one that waits, that of the next try.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    book = _Book(sent_kept=limit if state == EffectState.SENT else 0)
    asyncio.run(read_topics(brokers, [EFFECTS_WAITING, EFFECTS_RESULTS], book.take))
    found = book.by_state()
    wanted = _UNDECIDED if state is None else (state,)
    chosen = sorted((effect for name in wanted for effect in found[name]), key=lambda effect: effect["time"])[-limit:]
    counts = {name: len(found[name]) for name in (*_UNDECIDED, WAITING)}
    answer({**counts, "effects": chosen}, lambda: _show(chosen, counts))


def _show(chosen: list[_Row], counts: dict[str, int]) -> None:
    print_rows(chosen, _COLUMNS, width_chars=_WIDTH_CHARS, no_wrap=("effect_id", "state"))
    note(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()))


class _Found:
    """The last record of one effect in each topic, and what these records say."""

    def __init__(self, effect_id: str) -> None:
        self.effect_id = effect_id
        self.records: dict[str, Record] = {}

    def take(self, topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            if self._is_of(topic, record):
                self.records.pop(topic, None)
                if record.value is not None:
                    self.records[topic] = record

    def _is_of(self, topic: str, record: Record) -> bool:
        wanted, value = self.effect_id.encode(), record.value or b""
        if topic in {EFFECTS_RESULTS, EFFECTS_WAITING}:
            return record.key == (wanted if topic == EFFECTS_RESULTS else WAITING_PREFIX + wanted)
        request = decode_request(value) if wanted in value else None
        return isinstance(request, EffectRequest) and request.effect_id == self.effect_id

    def _decoded(self, topic: str, decode: Callable[[bytes], T]) -> T | None:
        return decode(self.records[topic].value or b"") if topic in self.records else None

    @property
    def result(self) -> EffectResult | None:
        return self._decoded(EFFECTS_RESULTS, decode_result)

    @property
    def waiting(self) -> Waiting | None:
        return self._decoded(EFFECTS_WAITING, decode_waiting)

    @property
    def state(self) -> str:
        """An EffectState, `waiting`, or `requested` while the outbox has not taken it up."""
        if self.waiting is not None:
            return WAITING
        return REQUESTED if self.result is None else self.result.state

    @property
    def request(self) -> EffectRequest | None:
        """The effect itself: it is with its result while that can be decided on, else in effects.requests."""
        for holder in (self.waiting, self.result):
            if holder is not None and holder.request is not None:
                return holder.request
        asked = self._decoded(EFFECTS_REQUESTS, decode_request)
        return asked if isinstance(asked, EffectRequest) else None

    def at(self, topic: str) -> str | None:
        """Coordinates of its record in a topic."""
        record = self.records.get(topic)
        return None if record is None else str(Coordinates(topic, record.partition, record.offset))

    def fields(self) -> dict[str, Any]:
        """All that is known, by name; `tried` are the last calls, the latest last."""
        result, waiting, request = self.result, self.waiting, self.request
        fields: dict[str, Any] = {"effect_id": self.effect_id, "state": self.state}
        if waiting is not None:
            fields |= {name: getattr(waiting, name) for name in ("attempts", "revision", "resends", "detail")}
            fields["next_try"] = iso_time(waiting.not_before_ms)
        elif result is not None:
            fields["time"] = iso_time(result.at_ms)
            fields |= {name: getattr(result, name) for name in ("attempts", "revision", "resends", "reason", "detail")}
        for name, topic in _PLACES.items():
            fields[name] = self.at(topic)
        shown = None if request is None else msgspec.structs.asdict(request)
        if shown is not None:
            del shown["effect_id"]
            shown |= shown.pop("more", {})  # fields of a later version
        return {**fields, "tried": self._tried(), "request": shown}

    def _tried(self) -> list[_Row]:
        holder = self.waiting or self.result
        calls = () if holder is None else holder.tried
        return [{"at": iso_time(call.at_ms), "took_ms": call.took_ms, "answer": call.answer} for call in calls]


def _find(brokers: Access, effect_id: str) -> _Found:
    found = _Found(effect_id)
    asyncio.run(
        read_topics(brokers, [EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING, EFFECTS_DEAD_LETTER], found.take)
    )
    if found.records.keys() <= {EFFECTS_DEAD_LETTER}:
        nothing(f"no effect {effect_id}: `once effects list` shows those to look at")
    return found


@effects.command("show")
@_effect_id_argument
@brokers_option
@json_option()
def show_effect(effect_id: str, brokers: Access) -> None:
    """Show one effect with its last calls, and with its whole request for as long as that is kept.

    Exit codes: 0 shown, 1 not, 2 wrong usage, 3 no such effect.
    """
    fields = _find(brokers, effect_id).fields()
    request = fields["request"] or {}
    lines = {name: value for name, value in fields.items() if name not in {"request", "tried"}} | request

    def show() -> None:
        click.echo(fields_text(lines))
        print_rows(fields["tried"], _TRIED, width_chars=_WIDTH_CHARS, fold=("answer",))

    answer(fields, show)
    if not request and not as_json():
        note("its request is no longer kept")


def decision_on(
    record: Record, result: EffectResult, request: EffectRequest | None, action: str
) -> tuple[int, bytes, bytes, Headers] | None:
    """Return partition, key, value and headers of a decision on a result; None without its request or origin."""
    origin = header(record.headers, ORIGIN)
    if request is None or origin is None:
        return None
    doubt = leaves_doubt(result.state, result.reason)
    decision = Resolution(result.effect_id, result.revision, action, request, result.resends, doubt)
    source = Coordinates(EFFECTS_RESULTS, record.partition, record.offset).encode()
    headers = ((ORIGIN, origin), (SOURCE, source))
    return record.partition, request.account.encode(), encode_request(decision), headers


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
@brokers_option
@json_option()
def resolve(effect_id: str, action: str | None, brokers: Access) -> None:
    """Resolve an effect that is in doubt or has failed; the outbox carries it out.

    The decision names the result that it was made on. If there is a newer one by the time that the outbox reads it,
    because another operator decided first, it is void and nothing is done. Look with `once effects show`, and decide
    again. Deciding twice is safe therefore.

    Exit codes: 0 written, 1 not, or there is nothing to decide, 2 wrong usage, 3 no such effect.
    """
    if action is None:
        raise click.UsageError("give one of --confirm, --resend and --abandon")
    found = _find(brokers, effect_id)
    result, request = found.result, found.request
    if result is None or found.state in _REFUSED:
        raise click.ClickException(f"{effect_id} {_REFUSED[found.state]}")
    decision = decision_on(found.records[EFFECTS_RESULTS], result, request, action)
    if decision is None:
        raise click.ClickException(f"{effect_id}: its result lacks its request or origin, so no outbox wrote it")
    at = write(brokers, EFFECTS_REQUESTS, *decision)
    decided = {"effect_id": effect_id, "action": action, "revision": result.revision, "at": at}
    answer(decided, f"{effect_id} {_DONE[ResolutionAction(action)]} ({at})")
