"""Random values: keys, passwords, ids."""

import base64
import secrets
import uuid
from typing import Final

_BYTES: Final = 32
CLIENT_KEY_PREFIX: Final = "once_"
"""Prefix by which a gateway client's key is found where it does not belong: in a repository, in a log."""


def secret() -> str:
    """A password, or a key to sign with."""
    return secrets.token_hex(_BYTES)


def client_key() -> str:
    return CLIENT_KEY_PREFIX + secrets.token_urlsafe(_BYTES)


def kafka_uuid() -> str:
    """An id of a cluster or a log directory, as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
