"""What a loss of Redis would make doubtful, and when it no longer would."""

from services.outbox.marks import Risk, left_of


def test_requests_are_at_risk_until_as_many_were_passed() -> None:
    risk = Risk(5, 1000, frozenset())
    assert risk.passed(3, 40, (), ()).left == 2
    assert risk.passed(5, 60, (), ()).left == risk.passed(9, 60, (), ()).left == 0


def test_none_beyond_the_offset_is_at_risk_however_few_were_passed() -> None:
    assert left_of(5, 100, 1, 99) == 4
    assert left_of(5, 100, 1, 100) == 0
    assert left_of(5, 100, 0, 101) == 0


def test_waiting_effects_are_at_risk_until_they_were_claimed() -> None:
    risk = Risk(0, 0, frozenset({"a", "b"}))
    assert risk.passed(0, 0, ["a"], ()).waiting == {"b"}


def test_a_request_that_was_put_off_unclaimed_stays_at_risk_as_a_waiting_one() -> None:
    after = Risk(2, 100, frozenset()).passed(2, 50, ["a"], ["b"])
    assert after.left == 0
    assert after.waiting == {"b"}


def test_what_an_aborted_transaction_had_called_is_at_risk_with_the_rest() -> None:
    risk = Risk(2, 100, frozenset({"a"})).joined(7, 90, ["b"])
    assert risk == Risk(7, 100, frozenset({"a", "b"}))
