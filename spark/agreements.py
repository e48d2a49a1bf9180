"""Links: which rows of which tables are parents and children, and the fields in which both must agree. Pure text.

Invariant: amounts are compared as numbers and texts as texts, and a difference is reported with both values.
Expressions are Spark SQL; the prefixes `p_` and `c_` mark a parent's and a child's columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark.night import NO_AMOUNT, Amount
from spark.schemas import TABLES, UNDECODABLE


@dataclass(frozen=True)
class Side:
    """How the rows of one table take part.

    Attributes:
        columns: expressions by column: `kind` at least, and each field of the link that the table has. `payment_id` is
            the table's own unless it is given, `origin` the place that the header names in payments.raw, `fault` a
            finding on the row by itself, or null.
    """

    columns: Mapping[str, str]
    where: str = "true"  # which rows of the table
    prepare: Callable[[DataFrame], DataFrame] | None = None  # adds columns that the expressions use


@dataclass(frozen=True)
class Agreement:
    """The fields in which a kind of child must equal its parent."""

    parents: tuple[str, ...]  # kinds of parents that it may have
    fields: tuple[str, ...]
    rule: str = "true"  # a further condition on `p_<field>` and `c_<field>`, never null
    text: str = "''"  # an expression: the message where the rule does not hold


@dataclass(frozen=True)
class Link:
    """One service's input and outputs.

    Attributes:
        fields: SQL types of what is compared, by name, in addition to the payment_id.
        parents, children: by table. Children in the order of their topics, which decides what a duplicate is.
    """

    name: str  # what is carried is named after it
    check: str  # as breaks name it
    service: str  # whose committed offsets count
    source: str  # the topic of the parents
    fields: Mapping[str, str]
    parents: Mapping[str, Side]
    children: Mapping[str, Side]
    agreements: Mapping[str, Agreement]  # by kind of child
    silent: tuple[str, ...] = ()  # kinds of parents that may have no child
    money: tuple[str, str] | None = None  # the fields with currency and amount, where a break puts money at risk

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of the children, in their order."""
        return tuple(dict.fromkeys(TABLES[table].topic for table in self.children if table != UNDECODABLE))

    def amount(self, side: str) -> Amount:
        """Return the amount at risk by a break of the parent (`p`) or child (`c`)."""
        return Amount(*(f"{side}_{name}" for name in self.money)) if self.money else NO_AMOUNT


def agreeing(link: Link) -> str:
    """Whether a child is of a kind that its parent may have, and has the same fields."""
    cases = []
    for kind, agreement in link.agreements.items():
        kinds = ", ".join(f"'{parent}'" for parent in agreement.parents)
        same = [f"p_{name} <=> c_{name}" for name in agreement.fields]
        cases.append(f"when '{kind}' then {' and '.join([f'p_kind in ({kinds})', *same, f'({agreement.rule})'])}")
    return f"(case c_kind {' '.join(cases)} else false end)"


def differing(link: Link) -> str:
    """In which fields a child differs from its parent, for people; empty where in none."""
    cases = []
    for kind, agreement in link.agreements.items():
        texts = [
            f"if(p_{name} <=> c_{name}, null, concat('{name} ', {shown(f'c_{name}')}, ', not ', {shown(f'p_{name}')}))"
            for name in agreement.fields
        ]
        texts.append(f"if({agreement.rule}, null, {agreement.text})")
        cases.append(f"when '{kind}' then concat_ws('; ', {', '.join(texts)})")
    return f"(case c_kind {' '.join(cases)} else '' end)"


def shown(name: str) -> str:
    return f"coalesce(cast({name} as string), 'absent')"


def unread() -> str:
    """Whether either side could not be read. That is a break of its own, and there is nothing to compare."""
    return f"(p_kind = '{UNDECODABLE}' or c_kind = '{UNDECODABLE}')"


def fitting(link: Link) -> str:
    """Whether a child is of a kind that its parent may have, or one of them could not be read."""
    cases = " or ".join(
        f"c_kind = '{kind}' and p_kind in ({', '.join(repr(parent) for parent in agreement.parents)})"
        for kind, agreement in link.agreements.items()
    )
    return f"({cases} or {unread()})"
