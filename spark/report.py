"""The result of a run, as a value that goes into report.json as it is. Pure.

What holds: nothing in it depends on a clock, a path, a duration or a machine, so one manifest always gives the same
bytes. Amounts are whole minor units and are written as strings: sums may need more digits than readers of JSON keep.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from spark.manifest import Manifest, Range

VERSION = 1
CLEAN = "clean"
BREAKS = "breaks"
LISTED_MAX = 100


class Break(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        kind: as in `spark.night.Kind`.
        check: which comparison found it.
        topic, partition, offset: of the record at fault; of a missing one, of what it should follow. None where a sum
            is wrong.
        payment_id: of the record, where it has one.
        detail: for people: both values, or where the other one stands.
    """

    kind: str
    check: str
    topic: str | None
    partition: int | None
    offset: int | None
    payment_id: str | None
    detail: str


class Breaks(msgspec.Struct, frozen=True):
    """All of a run.

    Attributes:
        total: how many.
        by_kind: how many of each kind, those without any included.
        by_check: how many each comparison found, those that found none left out.
        listed_max: how many are listed at most.
        listed: the first of them by kind, topic, partition and offset.
    """

    total: int
    by_kind: dict[str, int]
    by_check: dict[str, int]
    listed_max: int
    listed: tuple[Break, ...]


class Cut(msgspec.Struct, frozen=True):
    """Which offsets the run covers, as its manifest says.

    Attributes:
        cut_id: the cut's name.
        digest: of the manifest, SHA-256.
        sequence: 1 for the first cut.
        taken_at: when, ISO 8601 in UTC.
        settled: nothing was under way.
        previous: digest of the manifest before; empty for a run from the beginning.
        cluster_id: Kafka's.
        topics: offsets by topic and partition.
        groups: committed offsets by consumer group and partition.
    """

    cut_id: str
    digest: str
    sequence: int
    taken_at: str
    settled: bool
    previous: str
    cluster_id: str
    topics: dict[str, dict[int, Range]]
    groups: dict[str, dict[int, int]]


class Currency(msgspec.Struct, frozen=True):
    """One currency over all accounts. Minor units, debits negative.

    Attributes:
        currency: ISO 4217.
        clients: client accounts that ever had a posting in it.
        opening_minor, debits_minor, credits_minor, closing_minor: of all accounts, house accounts included.
        clients_closing_minor: of client accounts alone.
        in_transit_minor: closing of the in-transit accounts: what is under way between partitions.
        turnover_minor: what left accounts in this run, as a positive amount, each payment once.
    """

    currency: str
    clients: int
    opening_minor: Decimal
    debits_minor: Decimal
    credits_minor: Decimal
    closing_minor: Decimal
    clients_closing_minor: Decimal
    in_transit_minor: Decimal
    turnover_minor: Decimal


class House(msgspec.Struct, frozen=True):
    """One house account in one currency, over its partitions. Minor units, debits negative.

    Attributes:
        name: without the partition.
        accounts: of how many partitions, and `moved` of these in this run.
    """

    currency: str
    name: str
    accounts: int
    moved: int
    opening_minor: Decimal
    debits_minor: Decimal
    credits_minor: Decimal
    closing_minor: Decimal


class Hour(msgspec.Struct, frozen=True):
    """Volume of one hour in one currency.

    Attributes:
        hour: its beginning, ISO 8601 in UTC.
        postings: that arrived in it, each once, in the currency of its first entry.
        debits_minor: what left accounts, as a positive amount.
    """

    hour: str
    currency: str
    postings: int
    debits_minor: Decimal


class Totals(msgspec.Struct, frozen=True):
    """What the ledger sums to.

    Attributes:
        digest: SHA-256 over all balances that are not 0: a line `account currency minor` each, sorted by its bytes.
        currencies, house_accounts: in the order of their codes and names.
        hours: those with any volume, in order.
    """

    digest: str
    currencies: tuple[Currency, ...]
    house_accounts: tuple[House, ...]
    hours: tuple[Hour, ...]


class Report(msgspec.Struct, frozen=True):
    """What a run found.

    Attributes:
        schema_version: of this structure.
        verdict: clean or breaks.
        full: whether the run began where the logs begin; else where the cut before ended.
        cut: what was read.
        figures: counts by name.
        in_flight: records under way at the cut, by what they wait for; no breaks.
        breaks: what is wrong.
        totals: sums of the ledger.
    """

    schema_version: int
    verdict: str
    full: bool
    cut: Cut
    figures: dict[str, int]
    in_flight: dict[str, int]
    breaks: Breaks
    totals: Totals


def cut_of(manifest: Manifest) -> Cut:
    """A manifest as the report shows it."""
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


def breaks_of(
    counts: Iterable[tuple[str, str, int]], listed: Iterable[Break], kinds: Iterable[str], listed_max: int
) -> Breaks:
    """All breaks of a run.

    Args:
        counts: kind, check and how many; a pair may come more than once.
        listed: at least the first `listed_max` of them.
        kinds: all that there are.
        listed_max: how many to list.
    """
    by_kind = Counter(dict.fromkeys(kinds, 0))
    by_check: Counter[str] = Counter()
    for kind, check, count in counts:
        by_kind[kind] += count
        by_check[check] += count
    first = tuple(sorted(listed, key=_place)[:listed_max])
    return Breaks(by_kind.total(), dict(by_kind), dict(+by_check), listed_max, first)


def report_of(
    manifest: Manifest, figures: Mapping[str, int], in_flight: Mapping[str, int], breaks: Breaks, totals: Totals
) -> Report:
    """The report of a run, with its verdict."""
    return Report(
        schema_version=VERSION,
        verdict=BREAKS if breaks.total else CLEAN,
        full=not manifest.previous,
        cut=cut_of(manifest),
        figures=dict(figures),
        in_flight=dict(in_flight),
        breaks=breaks,
        totals=totals,
    )


def encode(report: Report) -> bytes:
    """As it is stored: JSON, keys sorted, indented, one newline at the end."""
    # Keys are sorted as text, and only text can be
    text = msgspec.json.encode(msgspec.to_builtins(report, str_keys=True), order="sorted")
    return msgspec.json.format(text, indent=2) + b"\n"


decode = msgspec.json.Decoder(Report).decode


def without_list(report: Report) -> Report:
    """The report without its list of breaks, whose length is the reader's choice: what two runs of a cut agree in."""
    blank = msgspec.structs.replace(report.breaks, listed=(), listed_max=0)
    return msgspec.structs.replace(report, breaks=blank)


def iso(time_ms: int) -> str:
    """A time as ISO 8601 in UTC, to the millisecond.

    Args:
        time_ms: milliseconds since 1970 UTC.
    """
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _place(item: Break) -> tuple[str, str, int, int, str, str, str]:
    none = -1
    partition = none if item.partition is None else item.partition
    offset = none if item.offset is None else item.offset
    return item.kind, item.topic or "", partition, offset, item.check, item.payment_id or "", item.detail
