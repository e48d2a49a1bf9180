"""The passwords of a local Redis' users, and the ACL file made of them: each readable by its owner alone.

What holds: a password is random, made once and kept over restarts; the ACL file has its digest only, and is replaced in
one step.
"""

import os
from pathlib import Path

from deploy.local.services import make_key
from deploy.security.redis_users import USERS, RedisUser, acl_file, digest


def password_file(directory: Path, user: RedisUser) -> Path:
    """Where that user's password is.

    Args:
        directory: of Redis.
        user: one of USERS.
    """
    return directory / "passwords" / user.name


def make_users(directory: Path) -> Path:
    """Make the passwords that are missing, and the ACL file; returns the latter, which Redis reads when it starts.

    Args:
        directory: of Redis.
    """
    digests = {}
    for user in USERS:
        path = password_file(directory, user)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_key(path)
        digests[user.name] = [digest(path.read_text())]
    return write_users(directory, acl_file(digests))


def write_users(directory: Path, text: str) -> Path:
    """Replace the ACL file, of which Redis takes notice at its next start or ACL LOAD; returns its path.

    Args:
        directory: of Redis.
        text: from `acl_file`.
    """
    path = directory / "users.acl"
    replace_private(path, text)
    return path


def replace_private(path: Path, text: str) -> None:
    """Replace a file in one step by one that its owner alone can read."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
