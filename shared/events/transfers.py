"""The ledger's input: the records of ledger.transfers. Pure."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.codec import decoder


class PricedBy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reference records that priced a payment, in JSON [fee, rate], each as `partition:offset`.

    Null where no record was in force: no fee for the currency, no rate for the pair, or no conversion.
    """

    fee: str | None  # in reference.fees
    rate: str | None  # in reference.rates


class Transfer(msgspec.Struct, frozen=True, tag="transfer", tag_field="type", omit_defaults=True):
    """A priced payment: the debit leg to book, on the debtor's partition."""

    payment_id: str
    debtor: str
    creditor: str
    amount_minor: int  # charged to the debtor, without the fee
    currency: str
    credit_minor: int  # credited to the creditor
    credit_currency: str
    value_date: str  # business date, YYYY-MM-DD
    fee_minor: int = 0  # in `currency`, charged on top
    rate: str | None = None  # the conversion rate that was used, a decimal string; None without conversion
    reference: str = ""
    decline: str | None = None  # why transform could not price it; the ledger declines it then
    priced_by: PricedBy | None = None  # None in records of former versions, which do not say
    submitted_by: SubmittedBy | None = None  # None if the raw record does not say


class TransferReversal(msgspec.Struct, frozen=True, tag="reversal", tag_field="type", omit_defaults=True):
    """A reversal to book, on the debtor's partition."""

    payment_id: str
    debtor: str
    reverses: str
    value_date: str
    reference: str = ""
    submitted_by: SubmittedBy | None = None  # None if the raw record does not say


class CreditLeg(msgspec.Struct, frozen=True, tag="credit_leg", tag_field="type", omit_defaults=True):
    """The second leg, on the creditor's partition. It never fails."""

    payment_id: str
    debtor: str
    creditor: str
    amount_minor: int  # negative where a reversal takes back what was credited
    currency: str
    value_date: str
    reversal: bool = False  # whether it belongs to a reversal


class AccountOpened(msgspec.Struct, frozen=True, tag="account_opened", tag_field="type", omit_defaults=True):
    """An account's new terms and owner. Opening an open account again changes them.

    transform and `once accounts` write it to ledger.transfers; the ledger passes it on with the account's version.

    Attributes:
        overdraft_minor: how far below zero each currency may go; None is unlimited.
        owner: the client whose keys may debit the account.
        version: of the account after this event: 1 for the first one, and 1 more for each that changes anything. 0 in
            the ledger's input, and in records of former versions.
        command_id: the payment_id of the instruction in payments.raw; empty for `once accounts`.
        expected_version: the ledger declines the command if the account has another one; None is any.
        value_date: day of receipt, as of a payment; empty for `once accounts`.
        submitted_by: None for `once accounts`, whose records have no origin in payments.raw, and as in Transfer.
    """

    account: str
    overdraft_minor: int | None
    owner: str = OWNER_UNNAMED
    version: int = 0
    command_id: str = ""
    expected_version: int | None = None
    value_date: str = ""
    submitted_by: SubmittedBy | None = None


class AccountClosed(msgspec.Struct, frozen=True, tag="account_closed", tag_field="type", omit_defaults=True):
    """The account takes no more debits; credits to it go to suspense."""

    account: str
    version: int = 0  # as in AccountOpened


TransferRecord = Transfer | TransferReversal | CreditLeg | AccountOpened | AccountClosed

encode_transfer = msgspec.json.Encoder().encode
decode_transfer: Callable[[bytes], TransferRecord] = decoder(TransferRecord)
"""Decodes a record of ledger.transfers."""


class DeclineReason(StrEnum):
    """Why the ledger declined. A decline is an event like any other."""

    INSUFFICIENT_FUNDS = "insufficient_funds"
    DEBTOR_CLOSED = "debtor_closed"
    NO_RATE = "no_rate"
    AMOUNT_VANISHES = "amount_vanishes"  # converted, it rounds to nothing
    AMOUNT_TOO_LARGE = "amount_too_large"  # converted, or its fee, it is above MAX_AMOUNT_MINOR
    ORIGINAL_NOT_FOUND = "original_not_found"  # unknown, declined itself, or out of the reversal window
    ALREADY_REVERSED = "already_reversed"
    NOT_AUTHORISED = "not_authorised"  # the client is missing, or may not debit or open this account
    STALE_VERSION = "stale_version"  # of the account, in a command to open it
