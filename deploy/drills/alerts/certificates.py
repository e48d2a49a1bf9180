"""Faults of certificates."""

import datetime as dt
from typing import Final

from deploy.drills.alerts.site import Site
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.waiting import until
from deploy.security.certificates import open_authority

LEFT: Final = dt.timedelta(days=20)
_SEEN_S: Final = 60.0


class ExpiringIdentity:
    """The monitor runs with an identity that ends in LEFT.

    The brokers of the site have no TLS, so they do not answer it meanwhile: it goes on, and says so.
    """

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        authority = open_authority(site.files / "credentials")
        identity = authority.identity("monitor", valid=LEFT)
        await site.start_again("monitor", TLS_CA_FILE=str(authority.ca_file), TLS_IDENTITY_FILE=str(identity))
        exported = 'once_certificate_expires_timestamp_seconds{job="monitor", certificate="identity"}'
        await until(lambda: site.value(exported) is not None, "its certificate is seen", _SEEN_S)
        expires_s = site.value(exported)
        if expires_s is None:
            raise NoEvidenceError("the monitor no longer exports its certificate")
        return f"the monitor's identity ends on {dt.datetime.fromtimestamp(expires_s, dt.UTC):%Y-%m-%d %H:%M} UTC"

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await site.restart("monitor")
