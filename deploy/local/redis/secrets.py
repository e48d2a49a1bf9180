"""The passwords of a local Redis' users, and the ACL file made of them: each readable by its owner alone.

Invariant: a password is random, made once and kept over restarts; the ACL file has its digest only, and is replaced in
one step.
"""

from pathlib import Path

from deploy.security.files import make_once, read_password, replace
from deploy.security.generated import secret
from deploy.security.redis_users import USERS, RedisUser, acl_file, digest


def password_file(directory: Path, user: RedisUser) -> Path:
    """Path of that user's password.

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
        make_once(path, secret)
        digests[user.name] = [digest(read_password(path))]
    return write_users(directory, acl_file(digests))


def write_users(directory: Path, text: str) -> Path:
    """Replace the ACL file, of which Redis takes notice at its next start or ACL LOAD; returns its path.

    Args:
        directory: of Redis.
        text: from `acl_file`.
    """
    path = directory / "users.acl"
    replace(path, text.encode())
    return path
