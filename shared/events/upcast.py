"""Older schema versions of payments, brought up to the current one. Pure.

One function for each version step, from dict to dict. A step is never edited once records of its version exist; a new
version adds one. The fields were checked before (`fields`), so a step only renames and reshapes, and cannot fail.
"""

from collections.abc import Callable, Mapping

from shared.events.payments import SCHEMA_VERSION

Fields = Mapping[str, object]


def _from_1_to_2(old: Fields) -> Fields:
    """Rename accounts and memo to debtor, creditor and reference; keep only the date of the time."""
    occurred_at = old.get("occurred_at")
    return {
        "schema_version": 2,
        "payment_id": old["payment_id"],
        "debtor": old["account_from"],
        "creditor": old["account_to"],
        "amount_minor": old["amount_minor"],
        "currency": old["currency"],
        "value_date": occurred_at[:10] if isinstance(occurred_at, str) else None,
        "reference": old.get("memo", ""),
    }


_STEPS: dict[int, Callable[[Fields], Fields]] = {1: _from_1_to_2}

VERSIONS = (*_STEPS, SCHEMA_VERSION)
"""Every schema version that is read, oldest first."""


def upcast(fields: Fields, version: int) -> Fields:
    """Convert the fields of a payment of any version in VERSIONS to the current version.

    Args:
        fields: checked fields as decoded from JSON; not changed.
        version: their schema version.
    """
    for step in range(version, SCHEMA_VERSION):
        fields = _STEPS[step](fields)
    return fields
