"""Settings from the environment: the only package that reads it.

Each setting is a dataclass field with its variable, default and meaning. The documentation is generated from it, and no
other code uses a variable's name. A wrong value is refused at start-up, and the message says what to change.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from shared.settings.services import (
    GatewaySettings,
    IdentitySettings,
    IngestSettings,
    InstallationSettings,
    LedgerSettings,
    MemberSettings,
    MonitorSettings,
    OutboxSettings,
    ReconcileSettings,
    ReversalSettings,
    RuntimeSettings,
    ServiceSettings,
    Settings,
    TopicSettings,
    ViewSettings,
)

__all__ = [
    "ALL_SETTINGS",
    "EXIT_CONFIG",
    "GatewaySettings",
    "IdentitySettings",
    "IngestSettings",
    "InstallationSettings",
    "LedgerSettings",
    "MemberSettings",
    "MonitorSettings",
    "OutboxSettings",
    "ReconcileSettings",
    "ReversalSettings",
    "RuntimeSettings",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "TopicSettings",
    "ViewSettings",
    "api_keys_file",
    "bootstrap_servers",
    "load",
    "load_for",
    "once_directory",
    "partitions",
    "replication_factor",
    "tls_files",
    "type_name",
]

EXIT_CONFIG = 78
"""Exit code for a refused setting (EX_CONFIG of sysexits.h): restarting will not help."""


class SettingsError(Exception):
    """Settings that cannot be used; the message names each variable and what to change."""


S = TypeVar("S", bound=Settings)

ALL_SETTINGS: tuple[type[Settings], ...] = (
    InstallationSettings,
    ServiceSettings,
    GatewaySettings,
    MemberSettings,
    RuntimeSettings,
    IdentitySettings,
    ReversalSettings,
    IngestSettings,
    LedgerSettings,
    OutboxSettings,
    MonitorSettings,
    ViewSettings,
    TopicSettings,
    ReconcileSettings,
)


def load(cls: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Read one class of settings, from the process's environment unless a test gives another.

    Raises SettingsError naming every variable that is missing or wrong at once.
    """
    source = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    wrong = [
        f"{variable} is not a setting: unset it. Producers are idempotent with acks=all, fenced by transactional.id"
        for variable in sorted(source)
        if variable == "ONCE_FENCING" or variable.startswith("ONCE_PRODUCER_")
    ]
    for item in fields(cls):
        variable = item.metadata["variable"]
        text = source.get(variable)
        if text is None:
            if item.default is MISSING:
                wrong.append(f"{variable} is not set: {item.metadata['help']}")
            continue
        try:
            values[item.name] = msgspec.convert(text, item.type, strict=False)
        except msgspec.ValidationError:
            wrong.append(f"{variable} is {text!r}, which is not {type_name(item)}: {item.metadata['help']}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    return cls(**values)


def load_for(cls: type[S], bootstrap_servers: str, tls_ca_file: str = "", tls_identity_file: str = "") -> S:
    """Read a service's settings for a command whose options name the cluster; raises SettingsError as `load`."""
    cluster = {
        "ONCE_BOOTSTRAP_SERVERS": bootstrap_servers,
        "ONCE_TLS_CA_FILE": tls_ca_file,
        "ONCE_TLS_IDENTITY_FILE": tls_identity_file,
    }
    return load(cls, {**os.environ, **cluster})


def partitions() -> int:
    """Return ONCE_PARTITIONS, for commands that create topics; raises SettingsError unless it is 1 to 256."""
    return load(InstallationSettings).partitions


def replication_factor(brokers: int | None = None) -> int:
    """Return ONCE_REPLICATION_FACTOR; where it is not set, 3, or the number of brokers if that is smaller.

    Raises SettingsError unless it is a number from 1 to `brokers`, which is None where it is unknown.
    """
    usual = TopicSettings().replication_factor
    default = usual if brokers is None else min(brokers, usual)
    chosen = load(TopicSettings, {"ONCE_REPLICATION_FACTOR": str(default), **os.environ}).replication_factor
    if chosen < 1 or (brokers is not None and chosen > brokers):
        raise SettingsError(f"ONCE_REPLICATION_FACTOR is {chosen}: set it from 1 to the number of brokers")
    return chosen


def once_directory() -> str | None:
    """Return the directory of the local stack's data, if ONCE_DIR names it."""
    return os.environ.get("ONCE_DIR")


def bootstrap_servers() -> str | None:
    """Return the brokers for commands, if ONCE_BOOTSTRAP_SERVERS names them."""
    return os.environ.get("ONCE_BOOTSTRAP_SERVERS")


def api_keys_file() -> str | None:
    """Return the gateway's file of keys for commands, if ONCE_GATEWAY_API_KEYS_FILE names one."""
    return os.environ.get("ONCE_GATEWAY_API_KEYS_FILE") or None


def tls_files() -> tuple[str, str]:
    """Return ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE for commands; empty where not set."""
    return os.environ.get("ONCE_TLS_CA_FILE", ""), os.environ.get("ONCE_TLS_IDENTITY_FILE", "")


def type_name(item: "Field[Any]") -> str:
    if get_origin(item.type) is Annotated:
        name: str = get_args(item.type)[0].__name__
        return name
    return item.type.__name__ if isinstance(item.type, type) else "str"
