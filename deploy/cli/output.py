"""Output of the commands: results on stdout as text, tables or JSON; progress and errors on stderr."""

import getpass
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

import click
import msgspec
from rich import progress as bars
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shared.settings import EXIT_CONFIG

EXIT_NOTHING: Final = 3
"""There was nothing to show or to judge."""

_JSON = "deploy.cli.output.json"
_LINE_EVERY_S = 3.0

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


def json_option(text: str = "Print one JSON object.") -> Callable[[FC], FC]:
    """The option `--json`, which `answer` and `as_json` read: a command gets no argument of it."""
    return click.option("--json", is_flag=True, help=text, expose_value=False, callback=_note_json)


def _note_json(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # click's
    context.meta[_JSON] = asked


def as_json() -> bool:
    """Whether the command that runs was given `--json`."""
    return bool(click.get_current_context().meta.get(_JSON))


def answer(value: object, text: str | Callable[[], None]) -> None:
    """Print a result: the value as one line of JSON, or its text, which a function may print itself."""
    if as_json():
        click.echo(msgspec.json.encode(value))
    elif callable(text):
        text()
    else:
        click.echo(text)


def print_rows(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    none: str = "",
    width_chars: int | None = None,
    **options: Collection[str],
) -> None:
    """Print these fields of rows as a `table`; without any row, the text `none` on stderr if there is one."""
    cells = ([Text(_cell(row[column])) for column in columns] for row in rows)
    if rows:
        console(width_chars).print(table(columns, cells, **options))
    elif none:
        note(none)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def fields_text(fields: Mapping[str, object]) -> str:
    """Fields as lines of name and value."""
    return "\n".join(f"{name + ':':13} {'' if value is None else value}" for name, value in fields.items())


def iso_time(at_ms: int) -> str:
    """Milliseconds since 1970 UTC as ISO 8601."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def iso_ms(value: str) -> int:
    """The type of an option: a time in ISO 8601, UTC unless it names an offset, as milliseconds since 1970 UTC."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value} is not a time: give one such as 2026-01-05T09:30, in UTC") from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def operator() -> str:
    """The user and host of this process, for what is recorded under an operator's name."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def note(text: str) -> None:
    """Print a line on stderr."""
    click.echo(text, err=True)


def nothing(text: str) -> NoReturn:
    """End a command that found nothing to show."""
    note(text)
    sys.exit(EXIT_NOTHING)


def console(width_chars: int | None = None) -> Console:
    """Stdout for tables: as wide as the terminal, or `width_chars` where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else width_chars)


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[RenderableType]] = (),
    *,
    right: Collection[str] = (),
    no_wrap: Collection[str] = (),
    fold: Collection[str] = (),
    **options: Any,
) -> Table:
    """A table without lines. A `str` cell is rich's markup, a `Text` is printed as it is.

    Args:
        right: columns to align to the right.
        no_wrap: columns whose cells stay on one line.
        fold: columns whose long words are continued on the next line, not cut.
    """
    made = Table(box=None, **{"pad_edge": False, **options})
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in no_wrap,
            overflow="fold" if column in fold else "ellipsis",
        )
    for row in rows:
        made.add_row(*row)
    return made


def print_findings(screen: Console, found: Iterable[tuple[str, ...]], total: int) -> None:
    """Print findings, a line each with what is wrong in red, and how many more there are than these."""
    for wrong, *details in found:
        screen.print(f"[red]{wrong}[/] {'  '.join(map(escape, details))}", soft_wrap=True)
        total -= 1
    if total:
        screen.print(f"and {total:,} more")


@contextmanager
def failing_on(*errors: type[Exception], text: Callable[[Exception], str] = str) -> Iterator[None]:
    """End the command with one line, the error's text, and exit code 1 on one of these errors."""
    try:
        yield
    except errors as error:
        raise click.ClickException(text(error)) from error


def refusing(*errors: type[Exception]) -> type[click.Group]:
    """A group whose commands end with one line and EXIT_CONFIG on one of these errors."""

    class Refusing(click.Group):
        def invoke(self, ctx: click.Context) -> object:
            try:
                return super().invoke(ctx)
            except errors as error:
                note(f"once: {error}")
                ctx.exit(EXIT_CONFIG)

    return Refusing


class _RateColumn(bars.ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: bars.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self._unit}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress of some work: a bar with rate and time left on a terminal, else a line now and then.

    Yields a function to call with the counts done and in all, of `unit`, such as records.
    """
    if sys.stderr.isatty():
        known = (bars.TextColumn(what), bars.BarColumn(), bars.MofNCompleteColumn(), _RateColumn(unit))
        with bars.Progress(*known, bars.TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    begun_s: float | None = None
    last_s = 0.0

    def line(done: int, total: int) -> None:
        nonlocal begun_s, last_s
        now_s = time.monotonic()
        if begun_s is None:  # time before the first step does not count for the rate
            begun_s = last_s = now_s
        if now_s - last_s >= _LINE_EVERY_S:
            last_s = now_s
            note(progress_line(what, unit, done, total, now_s - begun_s))

    yield line


def progress_line(what: str, unit: str, done: int, total: int, elapsed_s: float) -> str:
    """One line: how far, how fast, and how many seconds are left."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left = f", {max(total - done, 0) / rate:.0f} s left" if rate else ""
    return f"{what}: {done:,} of {total:,} {unit}, {rate:,.0f}/s{left}"
