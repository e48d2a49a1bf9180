"""Programs that a drill runs to their end: Kafka's own tools, with the Java client, and this project's modules."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from deploy import PROJECT_ROOT
from deploy.local import jars
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.prerequisites import require_java

PRODUCER_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ToolFailedError(RuntimeError):
    """One of Kafka's own tools failed; the message is its output."""


class Ended(NamedTuple):
    """How a program ended, and what it wrote to stdout and stderr."""

    exit_code: int
    output: str


async def kafka_tool(main_class: str, *words: str, options: Sequence[str] = ()) -> Ended:
    """Run one of Kafka's own tools, on the brokers' jars, with options for the JVM."""
    java, classpath = require_java(), jars.classpath()
    archive = jars.archive_options(jars.archive_path(java, classpath))
    return await run([java, *archive, *_QUICK, *options, main_class, *words], {"CLASSPATH": classpath})


async def admin_tool(kafka: LocalKafka, main_class: str, *words: str) -> str:
    """Run one of Kafka's own tools against a cluster, and return its output.

    Raises:
        ToolFailedError: it failed.
    """
    logging = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2.xml'}"
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    ended = await kafka_tool(main_class, *servers, *words, options=[logging])
    if ended.exit_code != 0:
        raise ToolFailedError(f"{main_class}: {ended.output}")
    return ended.output


async def module(name: str, **variables: str) -> Ended:
    """Run one of the project's modules, with variables on top of the environment."""
    return await run([sys.executable, "-m", name], variables)


async def run(argv: list[str], variables: Mapping[str, str]) -> Ended:
    """Run a program, and end it when the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **variables},
        cwd=PROJECT_ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode or 0, output.decode())
