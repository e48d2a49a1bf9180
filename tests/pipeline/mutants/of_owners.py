"""Mutants of the checks of clients, owners and versions."""

from typing import Final

from tests.pipeline.mutants.mutant import Mutant, Table

_OWNERS, _DECISIONS, _DECODE = "test_checks_owners.py", "test_decisions.py", "test_decode_topics.py"
_WRONG = f"{_DECISIONS}::test_a_wrong_decision_is_found"
_ALTERED = f"{_OWNERS}::test_what_is_altered_is_found_where_it_is"
_RIGHT = f"{_OWNERS}::test_right_decisions_on_ownership_are_no_breaks"
_FORMER = f"{_OWNERS}::test_records_of_former_versions_pass_below_the_offsets_of_ownership"
_LISTED = f"{_OWNERS}::test_an_account_without_its_record_of_ledger_accounts_is_a_break_until_it_comes"
_CARRIED = f"{_OWNERS}::test_owners_and_their_offsets_are_known_from_the_run_before"
_OF_COMMANDS = f"{_OWNERS}::test_a_command_without_an_outcome_changed_nothing_and_was_not_stale"
_RULES, _CLIENTS, _LEDGER = "decisions/owners.py", "ownership.py", "checks/ledger.py"

OF_OWNERS: Final[Table] = {
    "owners-any-client": Mutant(
        "lets any client debit an account",
        _RULES,
        "{client('client')} = {OWNED_BY})\"",
        'true)"',
        f"{_WRONG}[debited_by_another_client]",
    ),
    "owners-house-without-the-scope": Mutant(
        "lets any client debit the house",
        "decisions/cover.py",
        "or act <> 'credit' and {HAS_SCOPE} = coalesce(",
        "or act <> 'credit' and true = coalesce(",
        f"{_WRONG}[house_debited_without_the_scope]",
    ),
    "owners-decline-of-the-house": Mutant(
        "accepts that a payment of the house was declined",
        "decisions/cover.py",
        "or act <> 'credit' and {HAS_SCOPE} = coalesce(",
        "or act <> 'credit' and false = coalesce(",
        f"{_WRONG}[house_declined_with_the_scope]",
    ),
    "owners-any-reversal": Mutant(
        "lets any client reverse",
        "decisions/cover.py",
        "when act in ('debit', 'reversal') and not {AUTHORISED}",
        "when act = 'debit' and not {AUTHORISED}",
        f"{_WRONG}[reversed_by_another_client]",
    ),
    "owners-first-owner": Mutant(
        "keeps the first owner of an account",
        "decisions/cover.py",
        "get(reverse(array_compact(earlier.owner)), 0)",
        "get(array_compact(earlier.owner), 0)",
        f"{_WRONG}[debited_by_a_former_owner]",
    ),
    "owners-decline-of-the-owner": Mutant(
        "accepts that an owner was declined",
        "decisions/cover.py",
        "case when not {AUTHORISED} then '{DeclineReason.NOT_AUTHORISED.value}'",
        "case when reason = '{DeclineReason.NOT_AUTHORISED.value}' then '{DeclineReason.NOT_AUTHORISED.value}'",
        f"{_WRONG}[owner_declined_as_unauthorised]",
    ),
    "owners-unpriced-decline": Mutant(
        "does not judge who sent a payment that has no price",
        "decisions/cover.py",
        "when act = 'refusal' and {AUTHORISED} =",
        "when false and {AUTHORISED} =",
        f"{_WRONG}[declined_without_a_rate_though_unauthorised]",
    ),
    "owners-opened-for-another": Mutant(
        "lets a client open an account for another",
        _RULES,
        ' and terms.owner = {client("client")}',
        "",
        f"{_WRONG}[opened_for_another_client]",
    ),
    "owners-opened-with-an-overdraft": Mutant(
        "lets a client open an account with an overdraft",
        _RULES,
        "and terms.overdraft <=> 0L ",
        "",
        f"{_WRONG}[opened_with_an_overdraft]",
    ),
    "owners-account-of-another": Mutant(
        "lets a client take an account of another",
        _RULES,
        'not known or {OWNED_BY} = {client("client")} and',
        "not known or",
        f"{_WRONG}[owner_changed_by_another_client]",
    ),
    "owners-account-with-a-balance": Mutant(
        "lets a client take an account that has a balance and no owner",
        "decisions/cover.py",
        "size(earlier) > 0 or coalesce(moved_from < at, false)",
        "size(earlier) > 0",
        f"{_WRONG}[account_of_the_operator_taken]",
    ),
    "owners-closed-account": Mutant(
        "lets a client open its closed account",
        _RULES,
        ' and {_IS_OPEN}))"""',
        '))"""',
        f"{_WRONG}[closed_account_opened_by_its_client]",
    ),
    "owners-stale-version": Mutant(
        "does not compare the version that a command expects",
        _RULES,
        "when terms.expected <> {_VERSION} then",
        "when false then",
        f"{_WRONG}[opened_at_a_stale_version]",
    ),
    "owners-declined-opening": Mutant(
        "accepts any decline of an opening",
        "decisions/cover.py",
        "when act = 'opening' and reason <>",
        "when false and reason <>",
        f"{_WRONG}[opening_declined_without_a_cause]",
    ),
    "owners-next-version": Mutant(
        "accepts any version of an account event",
        _RULES,
        "when terms.version <> {_NEXT}\n",
        "when false\n",
        f"{_WRONG}[version_skipped]",
    ),
    "owners-version-of-a-change": Mutant(
        "expects the same version after a change",
        _RULES,
        "if({_CHANGES}, 1, 0)",
        "0",
        f"{_WRONG}[version_kept_though_changed]",
    ),
    "owners-former-version": Mutant(
        "reports account events of former versions",
        _RULES,
        "{_VERSION} = 0 and {{former}}",
        "{_VERSION} = 0 and false",
        _FORMER,
    ),
    "owners-former-for-ever": Mutant(
        "accepts account events of former versions behind payments that need a client",
        "decisions/cover.py",
        "coalesce(at < {by_partition('partition', first)}, true)",
        "true",
        f"{_OWNERS}::test_a_former_version_opened_an_account_where_there_was_no_payment",
    ),
    "owners-listed-terms": Mutant(
        "does not compare ledger.accounts with the account events",
        _RULES,
        "and listed.owner = coalesce(owner, '{OWNER}')",
        "",
        f"{_WRONG}[account_listed_with_another_owner]",
    ),
    "owners-newest-by-place": Mutant(
        "leaves the terms of the last place, which a repair has replaced",
        _RULES,
        "if({where} is null, null, offset)",
        "if({where} is null, null, since)",
        f"{_DECISIONS}::test_terms_that_a_repair_wrote_replace_later_ones[2]",
    ),
    "owners-not-listed": Mutant(
        "accepts an account event without its record of ledger.accounts",
        _RULES,
        "version > 0 and since > coalesce(listed.since, -1L)",
        "false",
        _LISTED,
    ),
    "owners-listed-above-the-cut": Mutant(
        "takes a record of ledger.accounts that may be above the cut for missing",
        _RULES,
        'rows.where(~F.col("partition").isin(*numbers))',
        "rows",
        f"{_OWNERS}::test_an_accounts_record_above_the_cut_is_waited_for",
    ),
    "owners-client-of-an-outcome": Mutant(
        "does not compare the client of a child with that of its parent",
        _CLIENTS,
        'strict = f"(c_submitted <=> {right} or',
        'strict = f"(true or',
        f"{_ALTERED}[client_altered_by_transform]",
    ),
    "owners-client-dropped": Mutant(
        "accepts a child that names no client",
        _CLIENTS,
        "or {unnamed} and not {needed})",
        "or {unnamed})",
        f"{_ALTERED}[client_dropped_by_the_ledger]",
    ),
    "owners-client-of-a-credit": Mutant(
        "accepts the client of a credit posting",
        _LEDGER,
        ' and c_submitted is null"',
        '"',
        f"{_ALTERED}[client_on_a_credit]",
    ),
    "owners-owner-of-an-order": Mutant(
        "does not compare what an opening asks for",
        "checks/intake.py",
        'OPENING: Final = ("payment_id", "debtor", "terms")',
        'OPENING: Final = ("payment_id", "debtor")',
        f"{_ALTERED}[owner_altered_by_transform]",
    ),
    "owners-opening-unanswered": Mutant(
        "accepts that nothing came of an opening",
        _LEDGER,
        'optional=("opening", "closing")',
        'optional=("opening", "closing", "instruction")',
        f"{_ALTERED}[opening_without_an_outcome]",
    ),
    "owners-offsets-not-carried": Mutant(
        "forgets from which offset on clients count",
        _CLIENTS,
        "if before or INSTALLATION",
        "if INSTALLATION",
        _CARRIED,
    ),
    "owners-always-count": Mutant(
        "lets clients count from the first payment on",
        _CLIENTS,
        "coalesce({offset} >= {by_partition(partition, raw_from(night))}, false)",
        "coalesce({offset} >= 0, false)",
        _FORMER,
    ),
    "owners-command-stale": Mutant(
        "accepts that nothing came of a stale command",
        _LEDGER,
        "when {_COMMANDED}.expected_version <> coalesce(last.version, 0L) then false",
        "when false then false",
        _OF_COMMANDS,
    ),
    "owners-command-of-another-owner": Mutant(
        "accepts that nothing came of another owner",
        _LEDGER,
        "and {_COMMANDED}.owner = coalesce(last_owner, '{OWNER}') end",
        "end",
        _OF_COMMANDS,
    ),
    "owners-header": Mutant(
        "takes any header for a client",
        "decode.py",
        "return F.when(said.rlike(_SUBMITTED_BY), said)",
        "return said",
        f"{_DECODE}::test_a_raw_record_has_the_client_of_a_whole_header",
    ),
    "owners-right-openings": Mutant(
        "takes a client's right opening for unauthorised",
        _RULES,
        "{client(\"client\")} <> '' and terms.owner",
        "{client(\"client\")} = '' and terms.owner",
        _RIGHT,
    ),
}
