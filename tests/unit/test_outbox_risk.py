"""Effects that a loss of Redis would put in doubt, and until when."""

from services.outbox.marks import Risk, left_of


def test_requests_are_at_risk_until_an_equal_number_has_passed() -> None:
    risk = Risk(5, 1000, frozenset())
    assert risk.passed(3, 40, (), ()).left == 2
    assert risk.passed(5, 60, (), ()).left == risk.passed(9, 60, (), ()).left == 0


def test_no_request_beyond_the_offset_is_at_risk() -> None:
    assert left_of(5, 100, 1, 99) == 4
    assert left_of(5, 100, 1, 100) == 0
    assert left_of(5, 100, 0, 101) == 0


def test_waiting_effects_are_at_risk_until_they_were_claimed() -> None:
    risk = Risk(0, 0, frozenset({"a", "b"}))
    assert risk.passed(0, 0, ["a"], ()).waiting == {"b"}


def test_a_request_put_off_without_a_claim_stays_at_risk_as_a_waiting_effect() -> None:
    after = Risk(2, 100, frozenset()).passed(2, 50, ["a"], ["b"])
    assert after.left == 0
    assert after.waiting == {"b"}
