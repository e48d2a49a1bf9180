"""Access to Redis: its users, their rights, and the ACL file that grants them. Pure.

Invariant: every client signs in, because the user `default` is off; each user has the commands that its work
needs and no others, and only the outbox reaches keys; the file has digests of passwords, never a password.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

KEY_PATTERN: Final = "once:{*}:*"
"""All keys of the outbox; see services/outbox/README.md."""


class RedisUser(NamedTuple):
    """A user of Redis.

    Attributes:
        commands: all that it may call, as ACL rules name them, scripts' own calls included.
        keys: the patterns of keys that they may touch.
    """

    name: str
    purpose: str
    commands: tuple[str, ...]
    keys: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Its rules for ACL SETUSER, without the passwords."""
        keys = tuple(f"~{pattern}" for pattern in self.keys)
        return ("reset", "on", *keys, *(f"+{command}" for command in self.commands))


OUTBOX: Final = RedisUser(
    "outbox",
    "the outbox: runs its own scripts, and what they call",
    (
        *("evalsha", "script|load", "del", "get", "hdel", "hget", "hgetall", "hlen", "hmget", "hset", "info"),
        *("object|encoding", "pexpire", "pexpireat", "scan", "set", "time"),
    ),
    (KEY_PATTERN,),
)
EXPORTER: Final = RedisUser(
    "exporter",
    "prometheus-redis-exporter: reads figures",
    ("info", "latency|latest", "slowlog|get", "slowlog|len"),
)
OPERATOR: Final = RedisUser(
    "operator",
    "supervision, drills and people: checks that it answers, empties it, stops it, reloads its ACL file",
    ("acl|load", "acl|whoami", "flushall", "info", "ping", "shutdown"),
)
USERS: Final = (OUTBOX, EXPORTER, OPERATOR)


def digest(password: str) -> str:
    """A password as the ACL file has it: its SHA-256, hex."""
    return hashlib.sha256(password.encode()).hexdigest()


def acl_file(digests: Mapping[str, Sequence[str]]) -> str:
    """The text of Redis' `aclfile`, from digests of each user's passwords: one, or two while a password is changed.

    Raises:
        ValueError: a user of USERS has no password, or one that is none of them has.
    """
    names = [user.name for user in USERS]
    if sorted(digests) != sorted(names) or not all(digests.values()):
        raise ValueError(f"passwords of {', '.join(sorted(digests))}: each of {', '.join(names)} needs one, no other")
    lines = ["user default reset off"]
    for user in USERS:
        passwords = (f"#{each}" for each in digests[user.name])
        lines.append(" ".join(("user", user.name, *user.rules, *passwords)))
    return "\n".join(lines) + "\n"
