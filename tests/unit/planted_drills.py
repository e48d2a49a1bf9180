"""Drills without brokers: a stage without a target, and acts that return what is planted."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from deploy.drills.drill import Drill, Verdict, judged
from deploy.drills.index import DRILLS
from deploy.drills.stage import Stage

BY_ROW = {one.row: one for one in DRILLS}


def bare(directory: Path) -> Stage:
    """Return a stage without a target."""
    return Stage(None, directory, "planted", 1, AsyncExitStack(), lambda _: None)


def verdict(drill: Drill, stage: Stage) -> Verdict:
    """Return the verdict on a drill by what a stage has noted."""
    return judged(drill, stage.journal)[0]


def act(result: object) -> Callable[..., Awaitable[Any]]:
    """Return a function that returns the result instead of acting on brokers; a dict has one by the last argument."""

    async def replaced(*words: object, **_: object) -> Any:
        return result[words[-1]] if isinstance(result, dict) else result

    return replaced
