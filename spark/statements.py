"""A statement of one account: each entry, with the balance after it, in minor units.

Invariant: every entry of the account is a line of its own, in the order of the ledger, and names its posting. An
account lives on one partition, so the order of its offsets is the order of its bookings.
"""

from typing import Final

STATEMENT_SQL: Final = """\
SELECT timestamp AS booked_at,
       value_date,
       payment_id,
       CASE WHEN leg = 'debit' AND debtor = :account THEN creditor
            WHEN leg = 'credit' AND creditor = :account THEN debtor
            ELSE concat(debtor, ' to ', creditor) END AS counterparty,
       concat_ws(', ',
                 nullif(reference, ''),
                 CASE WHEN reversal THEN concat_ws(' ', 'reversal of', coalesce(reverses, 'a payment')) END,
                 CASE WHEN fee_minor <> 0 THEN concat('fee ', fee_minor) END,
                 concat('rate ', rate)) AS text,
       CAST(entry.amount_minor AS DECIMAL(38, 0)) AS amount_minor,
       CAST(sum(CAST(entry.amount_minor AS DECIMAL(38, 0))) OVER (
              PARTITION BY entry.currency ORDER BY partition, offset, position
              ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS DECIMAL(38, 0)) AS balance_minor,
       entry.currency AS currency,
       topic,
       partition,
       offset,
       position
FROM postings LATERAL VIEW posexplode(entries) AS position, entry
WHERE entry.account = :account
"""
"""Lines of an account, over a table or view `postings` with everything from the first posting on. It is run by
`spark.sql(STATEMENT_SQL, args={"account": "..."})`; elsewhere, write the account in quotes in place of `:account`."""

STATEMENT_OF_DAYS_SQL: Final = f"""\
SELECT * EXCEPT (position)
FROM ({STATEMENT_SQL})
WHERE to_date(booked_at) BETWEEN coalesce(:first, DATE'0001-01-01') AND coalesce(:last, DATE'9999-12-31')
ORDER BY currency, partition, offset, position
"""  # noqa: S608 # made of constants
"""The lines of some days in UTC, in their order; balances include earlier lines. `first` and `last` may be null."""
