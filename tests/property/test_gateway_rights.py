"""The gateway's rules of who may debit and open an account are the ledger's, for what both know."""

from collections.abc import Callable

from hypothesis import event, given
from hypothesis import strategies as st

from services.gateway import authorisation
from services.gateway.domain import RefusedError
from services.ledger.terms import decide_opening, may_debit
from shared.events.clients import OWNER_UNNAMED, Scope
from shared.events.payments import AccountOpening
from shared.events.postings import Account, AccountTerms, Decline
from shared.events.transfers import AccountOpened, DeclineReason
from shared.http.keys import Principal

clients = st.sampled_from(["shop", "rival", OWNER_UNNAMED])
principals = st.builds(Principal, clients, st.just("0" * 16), st.frozensets(st.sampled_from(list(Scope))))
opened = st.builds(
    AccountTerms, clients, st.integers(1, 3), overdraft_minor=st.sampled_from([0, 5, None]), closed=st.booleans()
)
openings = st.builds(
    AccountOpening,
    payment_id=st.just("c"),
    debtor=st.just("2378"),
    overdraft_minor=st.sampled_from([0, 5, None]),
    expected_version=st.none() | st.integers(0, 3),
    owner=st.none() | clients,
)


def allows(check: Callable[[], None]) -> bool:
    try:
        check()
    except RefusedError as error:
        if error.status != 403:
            raise
        return False
    return True


def state_of(terms: AccountTerms | None) -> Account | None:
    if terms is None:
        return None
    return Account({"EUR": 1}, terms.overdraft_minor, terms.closed, terms.owner, terms.version)


@given(principals, st.sampled_from(["2378", "cash@0"]), st.none() | opened)
def test_a_debit_is_allowed_alike(principal: Principal, debtor: str, terms: AccountTerms | None) -> None:
    owner = OWNER_UNNAMED if terms is None else terms.owner
    allowed = allows(lambda: authorisation.check_debit(principal, debtor, owner))
    event(f"allowed: {allowed}")
    assert allowed == may_debit(principal.submitted_by, debtor, state_of(terms))


@given(principals, openings, st.none() | opened)
def test_an_opening_is_allowed_alike(principal: Principal, opening: AccountOpening, terms: AccountTerms | None) -> None:
    allowed = allows(lambda: authorisation.check_opening(principal, opening, terms))
    event(f"allowed: {allowed}")
    command = AccountOpened(
        opening.debtor,
        opening.overdraft_minor,
        opening.owner or principal.client,
        command_id=opening.payment_id,
        expected_version=opening.expected_version,
    )
    decided = decide_opening(state_of(terms), command, principal.submitted_by)
    assert allowed == (not isinstance(decided, Decline) or decided.reason != DeclineReason.NOT_AUTHORISED)
