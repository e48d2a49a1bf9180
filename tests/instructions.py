"""Hypothesis strategies for instructions as senders write them. Holds no expectations."""

from datetime import date

from hypothesis import strategies as st

from shared.events.fields import HOUSE_ACCOUNTS
from shared.events.payments import MAX_AMOUNT_MINOR, SCHEMA_VERSION, AccountOpening, Instruction, Payment, Reversal
from shared.events.reference import MINOR_DIGITS

client_accounts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
house_accounts = st.builds("{}@{}".format, st.sampled_from(HOUSE_ACCOUNTS), st.integers(0, 5))
accounts = client_accounts | house_accounts
currencies = st.sampled_from(sorted(MINOR_DIGITS))
amounts_minor = st.integers(1, MAX_AMOUNT_MINOR)
# The characters for which str.isprintable is true: a filter of whole texts would drop most of them
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
payment_ids = st.text(printable, min_size=1, max_size=128)
dates = st.dates(min_value=date(1, 1, 1)).map(date.isoformat)
references = st.text(max_size=512)

payments = st.builds(
    Payment,
    payment_id=payment_ids,
    debtor=accounts,
    creditor=accounts,
    amount_minor=amounts_minor,
    currency=currencies,
    schema_version=st.just(SCHEMA_VERSION),
    credit_currency=st.none() | currencies,
    value_date=st.none() | dates,
    reference=references,
).filter(lambda payment: payment.debtor != payment.creditor)

reversals = st.builds(
    Reversal,
    payment_id=payment_ids,
    debtor=accounts,
    reverses=payment_ids,
    schema_version=st.just(SCHEMA_VERSION),
    value_date=st.none() | dates,
    reference=references,
)

counts = st.none() | st.integers(0, MAX_AMOUNT_MINOR)

openings = st.builds(
    AccountOpening,
    payment_id=payment_ids,
    debtor=client_accounts,
    overdraft_minor=counts,
    expected_version=counts,
    owner=st.none() | client_accounts,  # a client is named as an account is
    schema_version=st.just(SCHEMA_VERSION),
)

instructions: st.SearchStrategy[Instruction] = payments | reversals

json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
