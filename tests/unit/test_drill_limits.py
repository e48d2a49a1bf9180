"""The reason of a drill that could not go on: what it waited for, and its limit."""

import asyncio

import pytest

from deploy.drills.drill import Journal, Moment
from deploy.drills.proxy.injection import Injection, NotInjectedError
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.run import explained
from deploy.drills.waiting import eventually, until, waiting_for

STEPS = Journal(steps=[Moment(0.1, "topics made"), Moment(0.2, "broker-1 away")])
RULE = Rule(api="Produce", action=Drop(Part.ANSWER))


async def never() -> bool:
    return False


async def test_a_drill_that_reaches_its_limit_says_what_it_waited_for_and_after_which_step() -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.05):
            await eventually(never, "9 records in the output", 60.0)
    assert explained(raised.value, STEPS, 0.05) == (
        "not done within 0.05 s, its limit; it waited until: 9 records in the output; the last step was: broker-1 away"
    )


async def test_the_innermost_wait_is_named_also_from_a_task_and_a_rule_of_the_proxy() -> None:
    async def waits() -> None:
        with waiting_for("the outer one"):
            await Injection(RULE).acted(within_s=60.0)

    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.05):
            await asyncio.create_task(waits())
    assert f"; it waited until: 1 acts of {RULE};" in explained(raised.value, STEPS, 90.0)


async def test_a_wait_without_a_description_leaves_the_last_step() -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    limit = "not done within 90 s, its limit"
    assert explained(raised.value, STEPS, 90.0) == f"{limit}; the last step was: broker-1 away"
    assert explained(raised.value, Journal(), 90.0) == f"{limit}; before its first step"


async def test_an_error_within_the_limit_is_named_with_its_text_or_the_last_step() -> None:
    with pytest.raises(TimeoutError) as raised:
        await until(lambda: False, "the broker answers", 0.01)
    assert explained(raised.value, STEPS) == "TimeoutError: not within 0.01 s: the broker answers"
    assert explained(TimeoutError(), STEPS) == "TimeoutError; the last step was: broker-1 away"
    assert explained(RuntimeError("a mistake"), STEPS, 90.0) == "RuntimeError: a mistake"
    with pytest.raises(NotInjectedError, match=r"not within 0\.01 s: 1 acts"):
        await Injection(RULE).acted(within_s=0.01)
