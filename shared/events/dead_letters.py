"""Reasons for refusing a record: the values of the `reason` header on payments.dead-letter. Pure."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a payment was refused. The `detail` header says what to change."""

    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    SCHEMA_VERSION_MISSING = "schema_version_missing"
    SCHEMA_VERSION_UNKNOWN = "schema_version_unknown"
    TYPE_UNKNOWN = "type_unknown"
    FIELD_MISSING = "field_missing"
    FIELD_UNKNOWN = "field_unknown"  # refused, not ignored: it may be a misspelt amount or date
    FIELD_INVALID = "field_invalid"
    AMOUNT_NOT_INTEGER = "amount_not_integer"
    AMOUNT_NOT_POSITIVE = "amount_not_positive"
    CURRENCY_UNKNOWN = "currency_unknown"
    ACCOUNT_INVALID = "account_invalid"
    SAME_ACCOUNT = "same_account"
    IDENTITY_CONFLICT = "identity_conflict"  # a known (debtor, payment_id) with other content
    WRONG_PARTITION = "wrong_partition"  # it would break the promise that an identity has one partition
    TOO_LARGE = "too_large"
