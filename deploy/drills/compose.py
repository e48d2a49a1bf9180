"""Run drills on a running deployment of docker-compose.yml.

Drills run where clients of the brokers run: in a container of the operator (deploy/drills/inside.py), with its rights
and its network. A container cannot kill others, so its faults are made from here. Each line that it writes to stdout
is a request for a fault, whose answer goes to its stdin, or a result.
"""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from deploy import PROJECT_ROOT
from deploy.compose.containers import Containers
from deploy.compose.engine import Engine, EngineError
from deploy.drills.drill import COMPOSE, Drill, Result
from deploy.drills.inside import Answer, Line, module_of

_LINE_BYTES: Final = 64 * 1024 * 1024
"""A result is one line, time lines and tables included."""
_END_S: Final = 60.0
_MAY: Final = frozenset({"kill", "take_away", "stop", "pause", "bring_back", "is_ready", "wait_ready"})


def operator(engine: Engine, *words: str) -> list[str]:
    """Return the command line of a module in a container of the operator."""
    return engine.argv("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "python", "operator", "-m", *words)


async def run_on_compose(
    engine: Engine,
    drills: Iterable[Drill],
    *,
    seed: int,
    done: Callable[[Result], None],
    command: Callable[..., list[str]] = operator,
) -> list[Result]:
    """Run drills in a container of the operator; what they have taken away is brought back whatever happens.

    Args:
        engine: whose deployment is up.
        drills: that run on COMPOSE; each says its steps on stderr.
        seed: of every drill's random choices.
        done: called with each result.
        command: makes the command line of a module.

    Raises:
        EngineError: no engine answers, or the container ended without all results.
    """
    if not await asyncio.to_thread(engine.answers):
        raise EngineError("no Docker engine answers: start one, and bring docker-compose.yml up")
    wanted = [f"{module_of(one)}:{one.row}" for one in drills if COMPOSE in one.targets]
    containers, results = Containers(engine), list[Result]()
    process = await asyncio.create_subprocess_exec(
        *command(engine, "deploy.drills.inside", str(seed), *wanted),
        stdin=PIPE,
        stdout=PIPE,
        cwd=PROJECT_ROOT,
        env={**os.environ, **engine.variables},
        limit=_LINE_BYTES,
        start_new_session=True,  # Ctrl-C ends it through here, so that its faults can still be healed
    )
    serving = asyncio.create_task(_serve(process, containers, results, done))
    try:
        await asyncio.shield(serving)
        await process.wait()  # its output has ended; kill() would take the exit code from asyncio's watcher
    except asyncio.CancelledError:
        process.terminate()
        await asyncio.wait({serving}, timeout=_END_S)
        raise
    finally:
        serving.cancel()
        if process.returncode is None:
            process.kill()
        code = await process.wait()
        await asyncio.to_thread(containers.heal)
    if len(results) < len(wanted):
        raise EngineError(f"the drills' container ended with {code} after {len(results)} of {len(wanted)} drills")
    return results


async def _serve(
    process: Process, containers: Containers, results: list[Result], done: Callable[[Result], None]
) -> None:
    """Answer the container's requests and take its results until it ends."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    async for text in process.stdout:
        line = msgspec.json.decode(text, type=Line)
        if line.result is not None:
            results.append(line.result)
            done(line.result)
            continue
        answer = await asyncio.to_thread(_answer, containers, line)
        process.stdin.write(msgspec.json.encode(answer) + b"\n")
        await process.stdin.drain()


def _answer(containers: Containers, line: Line) -> Answer:
    """Do what a request asks for."""
    if line.do not in _MAY:
        return Answer(error=f"no fault is named {line.do}")
    try:
        said = getattr(containers, line.do)(*line.names)
    except EngineError as error:
        return Answer(error=str(error))
    return Answer(said=said if isinstance(said, str) else "yes" if said else "")
