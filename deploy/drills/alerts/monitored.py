"""A monitored stack for the alerts' drills: ready, every one of its targets scraped, and with payments behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deploy.drills.alerts.site import NotBookedOnceError, Site
from deploy.drills.prometheus import PrometheusError
from deploy.drills.starting import starting
from deploy.drills.waiting import until
from deploy.local.supervisor.stack import Stack, StackNotReadyError

SCRAPED_S: Final = 30.0


@asynccontextmanager
async def monitored(directory: Path, brokers: int = 3) -> AsyncIterator[Site]:
    """A monitored stack that is killed at the end.

    Args:
        directory: for its data and logs.
        brokers: three for the drills of replication.

    Raises:
        StackNotReadyError, KafkaNotReadyError, ...: it did not come up; each names the component.
    """
    stack = Stack(directory, brokers=brokers, monitoring=True)
    async with starting(stack):
        site = Site(stack)
        try:
            await until(lambda: _all_up(site), "every target scraped", SCRAPED_S)
            await site.warm_up()
        except (TimeoutError, NotBookedOnceError) as error:
            raise StackNotReadyError(str(error)) from error
        with site.watch:
            yield site


def _all_up(site: Site) -> bool:
    try:
        targets = site.prometheus.targets()
    except PrometheusError:
        return False
    return bool(targets) and all(target.up for target in targets)
