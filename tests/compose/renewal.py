"""New certificates for the services to be killed: each must come back with its new one, and be accepted."""

from typing import Final

from tests.compose.engine import Engine, VerifyError, say
from tests.compose.faults import VICTIMS

_ASKING: Final = "outbox"
"""It reaches both brokers and Redis."""
SERVERS: Final = {"broker-1": 9092, "redis": 6379}
"""The victims that show a certificate to their clients, and where."""
_SHOW: Final = """\
import ssl, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    print(ssl.get_server_certificate((host, int(port))), end=";")
"""


def shown(engine: Engine) -> dict[str, str]:
    """The certificates that the servers show now, in PEM."""
    asked = [f"{name}:{port}" for name, port in SERVERS.items()]
    output = engine.compose("exec", "--no-TTY", _ASKING, "python", "-c", _SHOW, *asked)
    return dict(zip(SERVERS, output.split(";"), strict=False))


def renew(engine: Engine) -> None:
    """Reissue the victims' certificates, as docs/deployment.md says. They use the old ones until they are restarted.

    Raises:
        VerifyError: not all were issued.
    """
    output = engine.compose("run", "--rm", "--no-TTY", "credentials", "--renew", *VICTIMS)
    missing = [name for name in VICTIMS if f"{name}/{name}.pem written" not in output]
    if missing:
        raise VerifyError(f"no new certificate for {', '.join(missing)}; credentials said:\n{output}")
    say(f"{', '.join(VICTIMS)} have new certificates, to be read when they are started again")


def check_renewed(before: dict[str, str], after: dict[str, str]) -> None:
    """Compare the certificates that the servers show with those that they showed before.

    Raises:
        VerifyError: one still shows its old certificate.
    """
    old = [name for name in SERVERS if after[name] == before[name]]
    if old:
        raise VerifyError(f"{', '.join(old)} still show an old certificate")
    say(f"{', '.join(SERVERS)} show their new certificates")
