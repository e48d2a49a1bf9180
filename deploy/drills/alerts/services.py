"""A service that is restarting in a loop, and a key that its clients lose soon."""

import time
from typing import Final

from deploy.clients.keyring import Keyring
from deploy.drills.alerts.site import Site
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.waiting import until
from shared.http.keys import DEFAULT_SCOPES

KILLS: Final = 3
_HOUR_MS: Final = 3_600_000
_SEEN_S: Final = 60.0


class Restarting:
    """A service is killed as soon as Prometheus has seen that it runs again.

    Args:
        name: its component, and its job.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        for _ in range(KILLS):
            before = self._started_s(site)
            if before is None:
                raise NoEvidenceError(f"{self._name} is not scraped")
            site.kill(self._name)
            seen = {None, before}
            await until(lambda seen=seen: self._started_s(site) not in seen, "it is seen again", _SEEN_S)  # type: ignore[misc]
        return f"{KILLS} starts of {self._name} seen after SIGKILL"

    async def heal(self, site: Site) -> None:
        """Nothing to heal: it runs again."""

    def _started_s(self, site: Site) -> float | None:
        return site.value(f'process_start_time_seconds{{job="{self._name}"}}')


class ExpiringKey:
    """A client of the gateway has a key that expires in an hour; then the key is revoked."""

    _client: Final = "drill"

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        expires_at_ms = time.time_ns() // 1_000_000 + _HOUR_MS
        _, key = Keyring(site.stack.client_files.keys).issue(self._client, DEFAULT_SCOPES, expires_at_ms)
        return key.line.partition(" ")[2]

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        keyring = Keyring(site.stack.client_files.keys)
        if any(key.client == self._client for key in keyring.read()):
            keyring.revoke(self._client)
