"""The result of a run, as a value that goes into report.json as it is. Pure.

Invariant: nothing in it depends on a clock, a path, a duration or a machine, so one manifest always gives the same
bytes. Amounts are whole minor units, written as strings: sums may need more digits than readers of JSON keep.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import msgspec

from spark.manifest import DEFAULT_TIME_ZONE, Manifest, Range

VERSION = 3
"""Version 1 counts the breaks that the run found, version 2 all that are open, and knows explanations. Version 3 adds
totals by value date and by business day."""
_DAYS_SINCE_VERSION = 3

CLEAN = "clean"  # no break is open
EXPLAINED = "explained"  # each open break has an explanation
BREAKS = "breaks"
LISTED_MAX = 100


class Explained(msgspec.Struct, frozen=True):
    """A person's explanation of a break."""

    by: str
    at: str  # ISO 8601 in UTC
    reason: str


class Break(msgspec.Struct, frozen=True):
    """One open break.

    Attributes:
        topic, partition, offset: of the record at fault; for a missing one, of its source. None where a sum is wrong.
    """

    kind: str  # as in `spark.night.Kind`
    check: str  # which comparison found it
    topic: str | None
    partition: int | None
    offset: int | None
    payment_id: str | None  # of the record, where it has one
    detail: str  # for people: both values, or the other record's place
    break_id: str = ""
    opened_in: int = 0  # sequence of the cut whose run found it first
    opened_at: str = ""  # when that cut was taken, ISO 8601 in UTC
    currency: str | None = None  # ISO 4217, of the amount
    amount_minor: Decimal | None = None  # at risk, where it is known
    explained: Explained | None = None


class Breaks(msgspec.Struct, frozen=True):
    """The open breaks after a run. Those that are explained are counted and listed apart."""

    total: int
    by_kind: dict[str, int]  # those without any included
    by_check: dict[str, int]  # those without any left out
    listed_max: int  # how many are listed at most
    listed: tuple[Break, ...]  # the first of them by kind, topic, partition and offset
    explained: tuple[Break, ...] = ()  # all of them, in the same order
    opened: int = 0  # by this run, explained or not
    closed: int = 0  # by this run
    oldest_at: str | None = None  # when the cut of the oldest one was taken, ISO 8601 in UTC
    at_risk_minor: dict[str, Decimal] = {}  # by currency: the sum of all amounts that are known


class Cut(msgspec.Struct, frozen=True):
    """The offsets that the run covers, as its manifest has them."""

    cut_id: str
    digest: str  # of the manifest, SHA-256
    sequence: int  # 1 for the first cut
    taken_at: str  # ISO 8601 in UTC
    settled: bool  # nothing was in flight
    previous: str  # digest of the manifest before; empty for a run from the beginning
    cluster_id: str
    topics: dict[str, dict[int, Range]]  # offsets by topic and partition
    groups: Mapping[str, Mapping[int, int | None]]  # committed offsets by group and partition; None if there is none


class Currency(msgspec.Struct, frozen=True):
    """One currency over all accounts, house accounts included. Minor units, debits negative."""

    currency: str  # ISO 4217
    clients: int  # client accounts that ever had a posting in it
    opening_minor: Decimal
    debits_minor: Decimal
    credits_minor: Decimal
    closing_minor: Decimal
    clients_closing_minor: Decimal  # of client accounts alone
    in_transit_minor: Decimal  # closing of the in-transit accounts: in flight between partitions
    turnover_minor: Decimal  # debits of this run, as a positive amount, each payment once


class House(msgspec.Struct, frozen=True):
    """One house account in one currency, over its partitions. Minor units, debits negative."""

    currency: str
    name: str  # without the partition
    accounts: int  # of how many partitions
    moved: int  # of these, in this run
    opening_minor: Decimal
    debits_minor: Decimal
    credits_minor: Decimal
    closing_minor: Decimal


class Hour(msgspec.Struct, frozen=True):
    """Volume of one hour in one currency."""

    hour: str  # its beginning, ISO 8601 in UTC
    currency: str
    postings: int  # that arrived in it, each once, in the currency of its first entry
    debits_minor: Decimal  # as a positive amount


class Day(msgspec.Struct, frozen=True):
    """The movements of this run on one day in one currency. Minor units, debits negative."""

    day: str  # ISO 8601
    currency: str
    postings: int  # each once, in the currency of its first entry
    debits_minor: Decimal  # over all accounts, as the currency's
    credits_minor: Decimal
    fees_minor: Decimal  # charged less given back
    turnover_minor: Decimal  # as a positive amount, each payment once


class Totals(msgspec.Struct, frozen=True):
    """The ledger's sums.

    Attributes:
        digest: SHA-256 over all balances that are not 0: a line `account currency minor` each, sorted by its bytes.
        value_dates: by the date in the payment.
        business_days: by the day of the posting's timestamp in `time_zone`.
    """

    digest: str
    currencies: tuple[Currency, ...]  # in the order of their codes
    house_accounts: tuple[House, ...]  # in the order of currencies and names
    hours: tuple[Hour, ...]  # those with any volume, in order
    value_dates: tuple[Day, ...] = ()
    business_days: tuple[Day, ...] = ()
    time_zone: str = DEFAULT_TIME_ZONE  # IANA name


class Report(msgspec.Struct, frozen=True):
    """The result of a run."""

    schema_version: int
    verdict: str  # clean, explained or breaks
    full: bool  # whether the run began where the logs begin; else where the cut before ended
    cut: Cut
    figures: dict[str, int]  # counts by name
    in_flight: dict[str, int]  # records in flight at the cut, by what they wait for; not breaks
    breaks: Breaks
    totals: Totals


def cut_of(manifest: Manifest) -> Cut:
    """Return a manifest as the report shows it."""
    return Cut(
        cut_id=manifest.cut_id,
        digest=manifest.digest,
        sequence=manifest.sequence,
        taken_at=iso(manifest.taken_at_ms),
        settled=manifest.settled,
        previous=manifest.previous,
        cluster_id=manifest.cluster_id,
        topics=manifest.topics,
        groups=manifest.groups,
    )


class Count(NamedTuple):
    """Breaks without an explanation, of one kind, comparison and currency."""

    kind: str
    check: str
    breaks: int
    currency: str | None = None
    amount_minor: Decimal = Decimal(0)
    oldest_at_ms: int = 0


def breaks_of(
    counts: Sequence[Count],
    listed: Iterable[Break],
    kinds: Iterable[str],
    listed_max: int,
    *,
    explained: Iterable[Break] = (),
    opened: int = 0,
    closed: int = 0,
) -> Breaks:
    """Return the open breaks after a run.

    Args:
        listed: at least the first `listed_max` of those without an explanation.
        kinds: all that exist.
        explained: all that have one.
    """
    by_kind = Counter(dict.fromkeys(kinds, 0))
    by_check: Counter[str] = Counter()
    at_risk_minor: defaultdict[str, Decimal] = defaultdict(Decimal)
    for count in counts:
        by_kind[count.kind] += count.breaks
        by_check[count.check] += count.breaks
        if count.currency is not None:
            at_risk_minor[count.currency] += count.amount_minor
    return Breaks(
        by_kind.total(),
        dict(by_kind),
        dict(+by_check),
        listed_max,
        tuple(sorted(listed, key=_place)[:listed_max]),
        tuple(sorted(explained, key=_place)),
        opened,
        closed,
        iso(min(count.oldest_at_ms for count in counts)) if counts else None,
        dict(sorted(at_risk_minor.items())),
    )


def report_of(
    manifest: Manifest, figures: Mapping[str, int], in_flight: Mapping[str, int], breaks: Breaks, totals: Totals
) -> Report:
    """Return the report of a run, with its verdict."""
    return Report(
        schema_version=VERSION,
        verdict=BREAKS if breaks.total else EXPLAINED if breaks.explained else CLEAN,
        full=not manifest.previous,
        cut=cut_of(manifest),
        figures=dict(figures),
        in_flight=dict(in_flight),
        breaks=breaks,
        totals=totals,
    )


def encode(report: Report) -> bytes:
    """Encode as it is stored: JSON, keys sorted, indented, one newline at the end."""
    # Keys are sorted as text, and only text can be
    text = msgspec.json.encode(msgspec.to_builtins(report, str_keys=True), order="sorted")
    return msgspec.json.format(text, indent=2) + b"\n"


decode = msgspec.json.Decoder(Report).decode


def without_list(report: Report) -> Report:
    """Return the report without its list of breaks, whose length the caller chooses. Two runs of a cut agree in it."""
    blank = msgspec.structs.replace(report.breaks, listed=(), listed_max=0)
    return msgspec.structs.replace(report, breaks=blank)


def agree(earlier: Report, later: Report) -> bool:
    """Whether two runs of a cut have the same result, as far as the version of the earlier one has it."""
    if earlier.schema_version < _DAYS_SINCE_VERSION:
        totals = msgspec.structs.replace(
            later.totals, value_dates=(), business_days=(), time_zone=earlier.totals.time_zone
        )
        later = msgspec.structs.replace(later, schema_version=earlier.schema_version, totals=totals)
    return without_list(earlier) == without_list(later)


def iso(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 UTC as ISO 8601 in UTC, to the millisecond."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _place(item: Break) -> tuple[str, str, int, int, str, str, str]:
    none = -1
    partition = none if item.partition is None else item.partition
    offset = none if item.offset is None else item.offset
    return item.kind, item.topic or "", partition, offset, item.check, item.payment_id or "", item.detail
