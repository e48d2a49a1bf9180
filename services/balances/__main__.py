"""Wires the view: ledger.postings in, a database and its web interface out. Exit codes as for every service.

`--rebuild` empties the database and ends; a view that runs on it, here or elsewhere, reads the topic again.
"""

import argparse
import logging
import sys
import threading
from contextlib import AsyncExitStack

import uvloop
from aiohttp import web

from services.balances import database
from services.balances.api import Api
from services.balances.ends import Ends, LostRecordsError
from services.balances.live import Live, parse
from services.balances.reader import Reader
from services.balances.store import DatabaseAwayError, ForeignDatabaseError, Store
from services.balances.transport import Member
from services.balances.worker import ASSIGNMENT, KAFKA, View
from services.balances.writing import DATABASE
from shared.eos.crash import CrashPoints
from shared.eos.errors import EXIT_FENCED, EosError, FencedError
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.admin import check_topics
from shared.kafka.cluster import Cluster
from shared.kafka.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.runtime import act
from shared.settings import EXIT_CONFIG, SettingsError, ViewSettings, load
from shared.signals import stop_on_signals
from shared.telemetry import logs
from shared.telemetry.health import Health
from shared.telemetry.server import TelemetryServer
from shared.telemetry.watchdog import Watchdog

NAME = "balances"
SHUTDOWN_S = 2.0
"""Seconds that a stop leaves requests under way."""

log = logging.getLogger("services.balances")


def main(words: list[str]) -> int:
    """Run until SIGTERM or SIGINT, or only empty the database; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.balances", description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="empty the view's database, and end")
    rebuild = parser.parse_args(words).rebuild
    try:
        settings = load(ViewSettings)
    except SettingsError as error:
        logs.configure(NAME, "-")
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the message says what to change
        return EXIT_CONFIG
    logs.configure(NAME, settings.instance, level=logging.getLevelNamesMapping()[settings.log_level])
    for library in ("faust", "mode", "aiokafka"):
        logging.getLogger(library).setLevel(logging.WARNING)  # they tell of every connection, join and start at INFO
    threading.excepthook = thread_ended
    try:
        if rebuild:
            empty(settings)
        else:
            uvloop.run(serve(settings))
    except (TopicMismatchError, ForeignDatabaseError, LostRecordsError, ValueError) as error:
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_CONFIG
    except (KafkaUnavailableError, DatabaseAwayError, OSError) as error:
        log.error("cannot start", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_FENCED
    except EosError as error:
        log.error("fenced" if isinstance(error, FencedError) else "fatal", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_FENCED
    return 0


def thread_ended(args: threading.ExceptHookArgs) -> None:
    """What a thread ended with, as a log line: Faust's consumer has one, and the rest of it notices by itself."""
    log.error("a thread ended", extra={"reason": repr(args.exc_value)})


def empty(settings: ViewSettings) -> None:
    """Empty the database."""
    store = Store(database.parse(settings.database))
    try:
        store.empty()
    finally:
        store.close()
    log.info("emptied: a view that runs, or is started, makes it again from the topic")


async def serve(settings: ViewSettings) -> None:
    """Follow the topic and serve what is there, until a signal."""
    stop = stop_on_signals()
    brokers = settings.bootstrap_servers
    crash_points = CrashPoints(settings.crash_point, act)
    url, watched = database.parse(settings.database), parse(settings.watched)
    health = Health(
        **{KAFKA: "not connected", DATABASE: "not connected", ASSIGNMENT: "no partitions assigned yet"},
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(Watchdog())
        await stack.enter_async_context(TelemetryServer(settings.metrics_port, health, host=settings.metrics_host))
        await check_topics(brokers, [LEDGER_POSTINGS])
        cluster = await stack.enter_async_context(Cluster(brokers, client_id=NAME))
        await cluster.partitions([LEDGER_POSTINGS])
        health.met(KAFKA)
        store = Store(url, crash_points.reach)
        stack.callback(store.close)
        member = Member(brokers, settings.instance, settings.session_timeout_ms)
        view = View(member, store, Ends(cluster), await cluster.cluster_id(), health, crash_points.reach)
        reader = Reader(database.reading(url))
        stack.push_async_callback(reader.close)
        live = Live(watched, bootstrap_servers=brokers, reader=reader, progress=view, health=health)
        application = web.Application()
        application.add_routes([*live.routes(), *Api(reader, view).routes()])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(live.stop)
        await web.TCPSite(runner, settings.host, settings.port).start()
        log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
        await view.run(stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
