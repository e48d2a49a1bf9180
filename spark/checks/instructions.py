"""What a payment and a reversal say: every service before the ledger passes it on as it is."""

from typing import Final

PAYMENT: Final = (
    "payment_id",
    "debtor",
    "creditor",
    "amount_minor",
    "currency",
    "credit_currency",
    "value_date",
    "reference",
)
REVERSAL: Final = ("payment_id", "debtor", "reverses", "value_date", "reference")
