"""Wires the view: ledger.postings in, a database and its web interface out. Exit codes as for every service.

`--rebuild` empties the database and ends; a view that runs on it, here or elsewhere, reads the topic again.
"""

import logging
import sys
import threading

import click
from aiohttp import web

from services.balances.api.access import Admission
from services.balances.api.reader import Reader
from services.balances.api.routes import Api, admitting
from services.balances.dashboard import Live, parse_watched
from services.balances.projection import database
from services.balances.projection.lag import Ends, LostRecordsError, topic_identity
from services.balances.projection.store import DatabaseAwayError, ForeignDatabaseError, Store
from services.balances.projection.transport import Member
from services.balances.projection.worker import ASSIGNMENT, KAFKA, View
from services.balances.projection.writing import DATABASE
from shared.addresses import is_loopback
from shared.eos.crash import CrashPoints
from shared.events.catalogue import LEDGER_POSTINGS
from shared.http.hosts import Hosts
from shared.http.keyfile import KeyFile
from shared.http.serving import runner_of
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.client.cluster import Cluster
from shared.kafka.runtime.process import TERSE, Process, exit_code, run_process, until_first_ends
from shared.kafka.runtime.runtime import act
from shared.settings import ViewSettings

NAME = "balances"
KEYS_VARIABLE = "ONCE_VIEW_API_KEYS_FILE"
REFUSED = (ForeignDatabaseError, LostRecordsError)
AGAIN = (DatabaseAwayError,)
SHUTDOWN_S = 2.0  # for requests under way at a stop
IDLE_TIMEOUT_S = 75.0  # a connection without a request holds a file descriptor

log = logging.getLogger("services.balances")


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rebuild", is_flag=True, help="empty the view's database, and end")
def main(*, rebuild: bool) -> None:
    """Run until SIGTERM or SIGINT, or only empty the database."""
    if rebuild:
        sys.exit(exit_code(NAME, ViewSettings, empty, refused=REFUSED, again=AGAIN))
    threading.excepthook = thread_ended
    ended = run_process(
        NAME,
        ViewSettings,
        serve,
        missing={KAFKA: "not connected", DATABASE: "not connected", ASSIGNMENT: "no partitions assigned yet"},
        refused=REFUSED,
        again=AGAIN,
        levels={**TERSE, "faust": logging.WARNING, "mode": logging.WARNING},  # they log every start at INFO
    )
    sys.exit(ended)


def thread_ended(args: threading.ExceptHookArgs) -> None:
    """Log the error of a thread: Faust's consumer has one, and the other parts notice its end by themselves."""
    log.error("a thread ended", extra={"reason": repr(args.exc_value)})


def empty(settings: ViewSettings) -> int:
    store = Store(database.database_of(settings), settings.partitions)
    try:
        store.empty()
    finally:
        store.close()
    log.info("emptied: a view that runs, or is started, makes it again from the topic")
    return 0


async def serve(settings: ViewSettings, process: Process) -> int:
    """Follow the topic and serve the view, until a signal."""
    stop, health, stack = process
    brokers = access(settings)
    crash_points = CrashPoints(settings.crash_point, act)
    url, watched = database.database_of(settings), parse_watched(settings.watched)
    key_file = key_file_of(settings)
    admission = Admission(
        None if key_file is None else key_file.keys, Hosts([settings.host, *settings.hosts.split(",")])
    )
    await check_topics(brokers, [LEDGER_POSTINGS], settings.partitions)
    await check_clock(brokers, settings.clock_skew_s_max)
    cluster = await stack.enter_async_context(Cluster(brokers, client_id=NAME))
    targets = await cluster.partitions([LEDGER_POSTINGS])
    health.met(KAFKA)
    store = Store(url, settings.partitions, crash_points.reach)
    stack.callback(store.close)
    member = Member(brokers, settings.instance, settings.session_timeout_ms)
    view = View(member, store, Ends(cluster, targets), await topic_identity(cluster), health, crash_points.reach)
    reader = Reader(database.reading(url))
    stack.push_async_callback(reader.close)
    live = Live(
        watched,
        admission=admission,
        partitions=settings.partitions,
        reader=reader,
        progress=view,
        health=health,
    )
    application = web.Application(middlewares=[admitting(admission)])
    application.add_routes([*live.routes(), *Api(reader, view, settings.partitions).routes()])
    runner = runner_of(application, idle_timeout_s=IDLE_TIMEOUT_S, shutdown_timeout_s=SHUTDOWN_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    stack.push_async_callback(live.stop)
    await web.TCPSite(runner, settings.host, settings.port).start()
    log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
    watching = [] if key_file is None else [key_file.watch(admission.use)]
    await until_first_ends(view.run(stop), *watching)
    return 0


def key_file_of(settings: ViewSettings) -> KeyFile | None:
    """The file of keys of the settings; ValueError, with what to change, if everybody on a network could read."""
    if settings.api_keys_file:
        return KeyFile(settings.api_keys_file, KEYS_VARIABLE)
    if not is_loopback(settings.host):
        raise ValueError(
            f"ONCE_VIEW_HOST is {settings.host!r} and {KEYS_VARIABLE} is empty: all who reach that address could read "
            f"every account; name the gateway's file of keys in {KEYS_VARIABLE}, or bind to 127.0.0.1"
        )
    return None


if __name__ == "__main__":
    main(prog_name="python -m services.balances")
