"""New certificates for those who are about to be killed: they have to come back with them, and be let in."""

from typing import Final

from deploy.compose import places
from deploy.compose.verify.engine import Engine, VerifyError, say
from deploy.compose.verify.faults import VICTIMS

_ASKING: Final = "outbox"
"""It reaches both brokers and Redis."""
SERVERS: Final = {"broker-1": places.KAFKA_PORT, places.REDIS: places.REDIS_PORT}
"""Of the victims, who shows a certificate to its clients, and where."""
_SHOW: Final = """\
import ssl, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    print(ssl.get_server_certificate((host, int(port))), end=";")
"""


def shown(engine: Engine) -> dict[str, str]:
    """The certificates that the servers show now, in PEM."""
    asked = [f"{name}:{port}" for name, port in SERVERS.items()]
    told = engine.compose("exec", "--no-TTY", _ASKING, "python", "-c", _SHOW, *asked)
    return dict(zip(SERVERS, told.split(";"), strict=False))


def renew(engine: Engine) -> None:
    """Issue the victims' certificates anew, as docs/deployment.md says. They go on with the old ones until they end.

    Raises:
        VerifyError: not all were issued.
    """
    told = engine.compose("run", "--rm", "--no-TTY", "credentials", "--renew", *VICTIMS)
    missing = [name for name in VICTIMS if f"{name}/{name}.pem written" not in told]
    if missing:
        raise VerifyError(f"no new certificate for {', '.join(missing)}; credentials said:\n{told}")
    say(f"{', '.join(VICTIMS)} have new certificates, to be read when they are started again")


def check_renewed(before: dict[str, str], after: dict[str, str]) -> None:
    """Hold what the servers show now against what they showed before.

    Raises:
        VerifyError: one still shows its old certificate.
    """
    old = [name for name in SERVERS if after[name] == before[name]]
    if old:
        raise VerifyError(f"{', '.join(old)} still show an old certificate")
    say(f"{', '.join(SERVERS)} show their new certificates")
