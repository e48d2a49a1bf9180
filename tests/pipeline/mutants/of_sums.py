"""Mutants of the checks of sums: balances, conservation, and money in transit."""

from typing import Final

from tests.pipeline.mutants.mutant import Mutant, Table

_TESTS = "test_balances.py"

OF_SUMS: Final[Table] = {
    "balances-amount-sign": Mutant(
        "puts a negative amount at risk",
        "balances.py",
        "str(abs(minor))",
        "str(minor)",
        f"{_TESTS}::test_a_currency_that_sums_below_zero",
    ),
    "balances-conservation-above-zero": Mutant(
        "reports sums above 0 only",
        "balances.py",
        "for one in currencies if one.closing_minor]",
        "for one in currencies if one.closing_minor > 0]",
        f"{_TESTS}::test_a_currency_that_sums_below_zero",
    ),
    "balances-transit-in-flight": Mutant(
        "does not count what is in flight",
        "balances.py",
        "gaps.get(currency, 0) - _SIGN[part] *",
        "gaps.get(currency, 0) - 0 *",
        f"{_TESTS}::test_legs_under_way[('ledger.postings',)-1]",
    ),
    "balances-early-legs-sign": Mutant(
        "adds credit legs whose debit may be above the cut",
        "balances.py",
        '"transit_early": -1',
        '"transit_early": 1',
        f"{_TESTS}::test_legs_under_way[('ledger.transfers',)-0]",
    ),
    "balances-leg-at-the-mark": Mutant(
        "takes the last booked credit leg for one in flight",
        "balances.py",
        'F.col("offset") > taken',
        'F.col("offset") >= taken',
        f"{_TESTS}::test_a_drained_ledger_is_sound",
    ),
    "balances-waiting-legs": Mutant(
        "takes a debit with a visible credit leg for one without",
        "balances.py",
        '["partition", "source_offset"], how="left_anti")',
        '["partition", "source_offset"], how="left_semi")',
        f"{_TESTS}::test_legs_under_way[()-0]",
    ),
    "balances-consumed-by-one": Mutant(
        "takes the next credit leg for booked",
        "places.py",
        "group.get(p, 0) - 1",
        "group.get(p, 0)",
        f"{_TESTS}::test_the_leg_at_the_committed_offset_is_under_way",
    ),
    "balances-late-not-carried": Mutant(
        "forgets entries that the changelog need not show yet",
        "balances.py",
        'carry["postings_late"] = compared.late',
        'carry["postings_late"] = compared.late.where("false")',
        f"{_TESTS}::test_postings_ahead_of_the_changelog_are_judged_when_it_comes",
    ),
    "balances-waiting-is-off": Mutant(
        "counts accounts that cannot be judged as off",
        "balances.py",
        'rows.where("not waiting").select("account")',
        'rows.select("account")',
        f"{_TESTS}::test_a_state_ahead_of_its_postings_is_judged_when_they_come",
    ),
    "balances-differences-of-the-run": Mutant(
        "forgets a difference while it cannot be judged",
        "balances.py",
        'F.when(F.col("waiting"), F.col("known"))',
        'F.when(F.col("waiting"), F.lit(None))',
        f"{_TESTS}::test_a_difference_is_known_while_it_cannot_be_judged",
    ),
    "balances-no-state": Mutant(
        "accepts an account without a state whose postings sum to 0",
        "changelog.py",
        '(F.col("folded") != F.col("logged")) | unknown',
        'F.col("folded") != F.col("logged")',
        f"{_TESTS}::test_an_account_that_has_nothing_left_needs_a_state",
    ),
    "balances-late-by-one": Mutant(
        "leaves out the entries of the last state",
        "changelog.py",
        'beyond = F.col("source_offset") > bound(covered)',
        'beyond = F.col("source_offset") >= bound(covered)',
        f"{_TESTS}::test_records_in_both_topics_are_judged_while_others_are_in_flight",
    ),
    "balances-late-sign": Mutant(
        "adds the entries that the changelog need not show yet",
        "changelog.py",
        '_side(late, -F.col("amount")',
        '_side(late, F.col("amount")',
        f"{_TESTS}::test_postings_ahead_of_the_changelog_are_judged_when_it_comes",
    ),
    "balances-decided-by-one": Mutant(
        "does not judge a state of the last visible posting",
        "changelog.py",
        'F.col("source_offset") <= bound(compared.shown)',
        'F.col("source_offset") < bound(compared.shown)',
        f"{_TESTS}::test_records_in_both_topics_are_judged_while_others_are_in_flight",
    ),
    "balances-states-not-carried": Mutant(
        "forgets the states of earlier cuts",
        "changelog.py",
        "[states(night), before.select(*STATE)]",
        '[states(night), before.select(*STATE).where("false")]',
        f"{_TESTS}::test_a_difference_is_a_break_as_long_as_it_is_there",
    ),
    "balances-first-state": Mutant(
        "compares an account's first state",
        "changelog.py",
        'F.max_by(F.struct("offset"',
        'F.min_by(F.struct("offset"',
        f"{_TESTS}::test_a_drained_ledger_is_sound",
    ),
    "balances-strays": Mutant(
        "accepts a state whose source cannot exist",
        "balances.py",
        "[strays(night)] if shown.strays else []",
        "[]",
        f"{_TESTS}::test_each_error_is_named",
    ),
    "balances-corrected": Mutant(
        "reports an error that the changelog corrected",
        "changelog.py",
        '"change <> 0 and not ended"',
        '"change <> 0"',
        f"{_TESTS}::test_a_difference_that_was_corrected_is_over",
    ),
    "balances-state-before-its-entries": Mutant(
        "compares a state with the postings before its transaction",
        "changelog.py",
        "_ENTRY, _STATE, _LAST = 0, 1, 2",
        "_ENTRY, _STATE, _LAST = 1, 0, 2",
        f"{_TESTS}::test_a_difference_is_a_break_as_long_as_it_is_there",
    ),
    "balances-faults-not-carried": Mutant(
        "forgets where a difference began",
        "changelog.py",
        'night.carried("balance_faults")',
        'night.carried("none")',
        f"{_TESTS}::test_a_difference_is_a_break_as_long_as_it_is_there",
    ),
    "balances-mended": Mutant(
        "remembers where a difference began after it was mended",
        "changelog.py",
        'before.join(differing.select(*ACCOUNT), list(ACCOUNT), how="left_semi")',
        "before",
        f"{_TESTS}::test_a_difference_that_was_mended_is_forgotten",
    ),
    "balances-opening": Mutant(
        "starts each run with accounts that have nothing",
        "movements.py",
        'total("opening") + total("debits")',
        'total("debits")',
        f"{_TESTS}::test_a_difference_is_a_break_as_long_as_it_is_there",
    ),
}
