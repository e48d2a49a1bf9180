"""A secured Redis for tests: TLS, its users, its own authority, and an administrator to change users."""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.redis.server import LocalRedis, Login, command, password_file, write_users
from deploy.security import files
from deploy.security.certificates import Authority, open_authority
from deploy.security.redis_users import OUTBOX, USERS, acl_file, digest
from services.outbox.address import address_of
from services.outbox.connection import FileCredentials, RedisAccess

ADMINISTRATOR = "administrator"


@dataclass(frozen=True)
class Secured:
    """A Redis that runs, and its authority.

    Attributes:
        redis: the server.
        authority: of the certificates of Redis and its clients.
    """

    redis: LocalRedis
    authority: Authority

    def login(self, user: str) -> Login:
        """The login of that user."""
        return Login(user, self.redis.directory / "passwords" / user, self.authority.tls(OUTBOX.name))

    def ask(self, user: str, *words: str) -> str:
        """Run a command as that user."""
        return command(self.redis.port, *words, login=self.login(user))

    def administer(self, *words: str) -> str:
        """Run a command as the administrator."""
        return self.ask(ADMINISTRATOR, *words)

    async def change(self, *words: str) -> str:
        """As `administer`, without blocking the test's own clients."""
        return await asyncio.to_thread(self.administer, *words)

    @property
    def settings(self) -> dict[str, str]:
        """The outbox's settings, ONCE_ prefix left out."""
        return {
            "REDIS_URL": self.redis.url,
            "REDIS_USERNAME": OUTBOX.name,
            "REDIS_PASSWORD_FILE": str(self.redis.password_file(OUTBOX)),
            "TLS_CA_FILE": str(self.authority.ca_file),
            "TLS_IDENTITY_FILE": str(self.authority.identity_file("outbox")),
        }

    def access(self, user: str = OUTBOX.name) -> RedisAccess:
        """The connection settings of the outbox, or of another user."""
        credentials = FileCredentials(user, str(self.redis.directory / "passwords" / user))
        return RedisAccess(address_of(self.redis.url), credentials, context(self.authority))


def context(authority: Authority, identity: str | None = "outbox", trusted: Authority | None = None) -> ssl.SSLContext:
    """A client's.

    Args:
        authority: of its identity.
        identity: that it shows; None for nothing.
        trusted: the authority that it trusts; its own if None.
    """
    made = ssl.create_default_context(cafile=(trusted or authority).ca_file)
    if identity is not None:
        made.load_cert_chain(authority.identity_file(identity))
    return made


def users_text(directory: Path, changed: Mapping[str, list[str]] | None = None) -> str:
    """The ACL file of a Redis in this directory, with an administrator.

    Args:
        directory: of Redis.
        changed: passwords of users that have others than the one in their file, by name.
    """
    passwords = {user.name: [password_file(directory, user).read_text()] for user in USERS} | dict(changed or {})
    text = acl_file({name: list(map(digest, each)) for name, each in passwords.items()})
    secret = directory / "passwords" / ADMINISTRATOR
    files.make_once(secret, files.secret)
    return f"{text}user {ADMINISTRATOR} on +@all ~* #{digest(secret.read_text())}\n"


@contextmanager
def secured_redis(directory: Path) -> Iterator[Secured]:
    """A secured Redis that answers; killed at the end."""
    authority = open_authority(directory / "authority")
    authority.identity("outbox")
    redis = LocalRedis(directory / "redis", authority=authority)
    redis.start()
    try:
        redis.wait_ready()
        write_users(redis.directory, users_text(redis.directory))
        made = Secured(redis, authority)
        made.ask("operator", "ACL", "LOAD")
        yield made
    finally:
        redis.kill()
