"""Each requested effect: it reports a posting or decline truly, and has an outcome (I11).

A request and the posting or decline that it reports are siblings in one transaction. `outcomes` checks the rest.
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark.checks import outcomes
from spark.history import bounds_of, made_from
from spark.links import (
    AHEAD,
    MISMATCH,
    ORIGINS,
    Agreement,
    Joined,
    Link,
    Side,
    agreeing,
    differing,
    fitting,
    judged,
    marked,
    paired,
    rows,
    unchanged,
    unreadable,
)
from spark.night import Checked, Kind, Night, all_breaks, all_findings, breaks, finding, union, with_carried
from spark.places import PLACE, Log, named, partition_of
from spark.schemas import UNDECODABLE
from spark.settling import (
    PARENTLESS,
    TORN,
    hidden_posting,
    keys_of,
    looked_up,
    marks_to_carry,
    orphans,
    parentless_state,
    posting_marks,
    whole_rows,
    without_parent,
)

_TOPIC = "effects.requests"
_CHECK = "events:requests"
_CARRIED = "effects_children_effect_requests"
_TEXTS = "account debtor creditor value_date currency reason reference effect_kind"
_FIELDS = (
    "account",
    "payment_id",
    "debtor",
    "creditor",
    "value_date",
    "amount",
    "currency",
    "fee",
    "reason",
    "reversal",
)


def _changed(postings: DataFrame) -> DataFrame:
    """Add the acting account, and the entry that changed its balance: none where suspense took its place."""
    named_account = postings.selectExpr("*", "if(leg = 'debit', debtor, creditor) as account")
    usual = "get(entries, if(leg = 'debit', 0, 1))"
    return named_account.selectExpr(
        "*", f"if({usual}.account = account, {usual}, get(filter(entries, one -> one.account = account), 0)) as changed"
    )


LINK = Link(
    name="effects",
    check=_CHECK,
    service="ledger",
    source="ledger.transfers",
    fields={**dict.fromkeys(_TEXTS.split(), "string"), "amount": "bigint", "fee": "bigint", "reversal": "boolean"},
    parents={
        "postings": Side(
            {
                "kind": "leg",
                **unchanged("account debtor creditor value_date reversal reference"),
                "amount": "coalesce(changed.amount_minor, 0)",
                "currency": "changed.currency",
                "fee": "fee_minor",
            },
            prepare=_changed,
        ),
        "declines": Side(
            {
                "kind": "'decline'",
                **unchanged("debtor value_date reversal reason"),
                "account": "debtor",
                "creditor": "''",
                "fee": "0L",
                "reference": "''",
            }
        ),
        UNDECODABLE: unreadable("topic = 'ledger.postings'"),
    },
    children={
        "effect_requests": Side(
            {
                "kind": "event",
                **unchanged("account debtor creditor value_date reversal reference reason"),
                "amount": "amount_minor",
                # Of a balance that did not change, the currency says nothing
                "currency": "if(amount_minor = 0, cast(null as string), currency)",
                "fee": "fee_minor",
                "effect_kind": "kind",
            }
        )
    },
    agreements={kind: Agreement((kind,), (*_FIELDS, "reference")) for kind in ("debit", "credit", "decline")},
)

# A balance that did not change is reported to machines only, and nothing is reported to a house account
_PROPER = """(c_effect_kind = 'event' or c_amount is null or c_amount <> 0) and instr(c_account, '@') = 0 and case
    when c_kind = 'debit' then c_effect_kind in ('receipt', 'event')
    when c_kind = 'credit' then c_effect_kind in ('notice', 'event')
    else c_effect_kind in ('decline_notice', 'event') end"""
_MATCHES = f"""p_origin <=> c_origin and c_partition = {partition_of("c_at")} and {_PROPER}
    and {agreeing(LINK)}"""
_REQUEST = (f"'{_TOPIC}'", "c_partition", "c_offset", "c_payment_id")


def check(night: Night) -> Checked:
    """Compare each request with its event, and with its outcome."""
    requested = night.count("effect_requests")
    of_events = _events(night) if requested or night.carried(_CARRIED) is not None else Checked()
    of_outcomes = outcomes.check(night)
    return Checked(
        all_breaks([of_events.breaks, of_outcomes.breaks]),
        {"effects_requested": requested, **of_outcomes.figures},
        {**of_events.in_flight, **of_outcomes.in_flight},
        {**of_events.carry, **of_outcomes.carry},
    )


def _events(night: Night) -> Checked:
    """Compare requests with their events. An event without a subscription has none."""
    log = Log(night.manifest, LINK.source)
    every = rows(night, LINK, LINK.parents, "parents", log.source_or_own())
    children = rows(night, LINK, LINK.children, "children", log.source_or_own())
    # Few events have a request: the others are left out before wide rows are shuffled
    with_event = every.join(children.selectExpr("at as event_at"), on=F.col("at") == F.col("event_at"), how="left_semi")
    joined = judged(
        night,
        # Numbered only to have the columns of every link: one event may have many requests
        paired(with_event, children.selectExpr("*", "1 as nth"), how="right"),
        {},
        {},
        matches=_MATCHES,
        state=f"if(p_at is null, {parentless_state(log, settled=night.manifest.settled)}, '{MISMATCH}')",
        found=f"if(p_at is not null, {_findings()}, null)",
    )
    postings = Log(night.manifest, "ledger.postings")
    if postings.unstable:
        joined = replace(joined, marks=marked(every, posting_marks(night, "at")))
    hidden = hidden_posting(night, LINK, joined, _TOPIC)
    early = joined.rows(AHEAD, PARENTLESS, where=f"state = '{AHEAD}' or {hidden}")
    count = joined.count(AHEAD) if hidden == "false" else early.count()
    keys = [keys_of(early, "c", "false")] if count else []
    parentless = None
    if joined.count(PARENTLESS) + joined.count(AHEAD) > count:
        parentless = looked_up(night, LINK, joined, hidden).persist()
        keys.append(keys_of(parentless.where(TORN), "c", "true"))
    carried = {_CARRIED: whole_rows(night, "effect_requests", _CARRIED, "true", union(keys))} if keys else {}
    return Checked(
        all_breaks(_breaks(night, joined, parentless)),
        in_flight={"effect_events": count},
        carry={
            **carried,
            **marks_to_carry(night, f"{LINK.name}_marks", joined.marks, [postings]),
        },
    )


def _findings() -> str:
    """Return what is wrong with a request compared with its event, as an array."""
    source = named(LINK.source, "c_at")
    wrong = {
        f"c_partition <> {partition_of('c_at')}": finding(
            Kind.ORPHAN, _CHECK, "made from {source}, on another partition", source=source
        ),
        "not (p_origin <=> c_origin)": finding(
            Kind.ORPHAN, _CHECK, "its origin is {own}, its event has {other}", **ORIGINS
        ),
        f"not {fitting(LINK)}": finding(
            Kind.ORPHAN,
            _CHECK,
            "it tells of a {reported}, and of {source} there is a {posted}",
            reported="c_kind",
            source=source,
            posted="p_kind",
        ),
        f"not ({_PROPER})": finding(
            Kind.EFFECT,
            _CHECK,
            "a {reported} of a {event} of {amount} to {account}",
            reported="c_effect_kind",
            event="c_kind",
            amount="c_amount",
            account="c_account",
        ),
        f"{fitting(LINK)} and not {agreeing(LINK)}": finding(
            Kind.AMOUNT, _CHECK, "{differing}", differing=differing(LINK)
        ),
    }
    return all_findings(wrong)


def _breaks(night: Night, joined: Joined, parentless: DataFrame | None) -> list[DataFrame]:
    found = orphans(LINK, joined, f"'{_TOPIC}'")
    if joined.count(MISMATCH):
        wrong = joined.rows(MISMATCH).selectExpr("*", "explode(found) as one")
        found.append(breaks(wrong, "one", *_REQUEST))
    if parentless is not None:
        missing = parentless.where("p_at is null").selectExpr("*", f"{without_parent(LINK, 'its event')} as one")
        with_event = parentless.where("p_at is not null")
        wrong = with_event.where(f"not coalesce({_MATCHES}, false)").selectExpr("*", f"explode({_findings()}) as one")
        found += [
            breaks(missing, "one", *_REQUEST, rechecked=TORN),
            breaks(wrong, "one", *_REQUEST),
            _again(night, with_event),
        ]
    return found


def _again(night: Night, with_event: DataFrame) -> DataFrame:
    """Return requests that an earlier cut's event had already. A cut may end between an event and its requests."""
    asked = union([frame for frame, _ in with_carried(night, "effect_requests", _CARRIED)])
    places = with_event.selectExpr("c_partition as partition", "c_offset as offset")
    later = asked.join(places, on=["partition", "offset"], how="left_semi")
    asked_before = made_from(night, "effect_requests", LINK.source, bounds_of(with_event.selectExpr("c_at as at")))
    before = asked_before.selectExpr("effect_id as known_id", f"{PLACE} as known_at")
    same = (later["effect_id"] == before["known_id"]) & (F.expr(PLACE) > before["known_at"])
    again = finding(Kind.DUPLICATE, _CHECK, "{effect} was asked for in an earlier cut", effect="effect_id")
    return breaks(
        later.join(before, on=same, how="left_semi"), again, f"'{_TOPIC}'", "partition", "offset", "payment_id"
    )
