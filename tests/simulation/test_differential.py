"""The model of the brokers answers as a real broker does, for sequences of requests from seeds."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import pytest

from tests.harness import cluster
from tests.simulation import coordinator, errors
from tests.simulation.differential import Caller, Difference, compare
from tests.simulation.log import Log
from tests.simulation.offset_requests import OffsetRequests
from tests.simulation.transactions import Decision, end
from tests.tiers import full

QUICK, QUICK_WITH_FAULTS = 75, 25
FULL, FULL_WITH_FAULTS = 200, 80
FOUND_WITHIN = 75
"""Sequences in which a planted difference must be found."""
Compared = Callable[..., Difference | None]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """Compare the model with a broker of this module's own, whose topics have nothing but the sequences."""
    with cluster(tmp_path_factory.mktemp("differential")) as running, asyncio.Runner() as runner:
        host, port = running.bootstrap_servers.split(":")

        def run(caller: Caller) -> None:
            runner.run(caller.run())

        def compared(seed: int, prefix: str, *, faults: bool) -> Difference | None:
            return compare(seed, f"{prefix}-{seed}", run, (host, int(port)), faults=faults)

        yield compared


def first_difference(compared: Compared, seeds: range, prefix: str, *, faults: bool) -> Difference | None:
    """Compare until there is one."""
    found = (compared(seed, prefix, faults=faults) for seed in seeds)
    return next((difference for difference in found if difference is not None), None)


def test_the_model_answers_as_a_broker(compared: Compared) -> None:
    found = first_difference(compared, range(1, QUICK + 1), "calm", faults=False)
    assert found is None, found


def test_the_model_answers_as_a_broker_when_requests_repeat_or_lose_their_answers(compared: Compared) -> None:
    found = first_difference(compared, range(1, QUICK_WITH_FAULTS + 1), "faults", faults=True)
    assert found is None, found


@full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("faults", "sequences"), [(False, FULL), (True, FULL_WITH_FAULTS)])
def test_further_sequences_have_the_same_answers(compared: Compared, faults: bool, sequences: int) -> None:
    first = 10_000
    found = first_difference(compared, range(first, first + sequences), f"full-{faults}", faults=faults)
    assert found is None, found


def _ends_anything(*args: Any) -> Decision:
    decision = end(*args)
    return decision._replace(code=errors.NONE) if decision.code == errors.INVALID_TXN_STATE else decision


PLANTED: Final[Mapping[str, tuple[Any, str, Any]]] = {
    "EndTxn without a transaction": (coordinator, "end", _ends_anything),
    "a batch that was resent": (Log, "_known", lambda *_: None),
    "aborted transactions are not named": (Log, "aborted", lambda *_: []),
    "a commit by anybody": (OffsetRequests, "_may_commit", lambda *_: errors.NONE),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_found(compared: Compared, planted: str) -> None:
    owner, name, replacement = PLANTED[planted]
    with mock.patch.object(owner, name, replacement):
        prefix = f"planted-{list(PLANTED).index(planted)}"
        found = first_difference(compared, range(1, FOUND_WITHIN + 1), prefix, faults=False)
    assert found is not None
    assert found.fields
