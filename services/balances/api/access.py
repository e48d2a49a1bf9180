"""Who may read the view: keys of the gateway's file, and the Host that a request names.

Invariant: with keys, every request but those for the documentation has a principal with the scope read before anything
is read. Only a key with the scope house as well sees all; any other sees accounts of its client, and what its client
submitted.

A browser cannot send a bearer token with a page and its event stream. So a key counts as well as the password of HTTP
Basic, which a browser asks for once.
"""

import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import hdrs, web

from services.balances.api.parameters import Refusal, RefusedError
from shared.events.clients import Scope
from shared.http.hosts import Hosts
from shared.http.keys import KeyRefusedError, Keys, Principal

_WITHOUT_KEY: Final = frozenset({"/docs", "/openapi.json"})
_OF_CLIENTS: Final = frozenset(
    {"/v1/accounts/{account}", "/v1/accounts/{account}/entries", "/v1/payments", "/v1/freshness"}
)
"""Paths for keys without the scope house; their handlers look at the owner."""
_CHALLENGES: Final = ('Bearer realm="view"', 'Basic realm="view: any name, and a key as the password", charset="UTF-8"')

PRINCIPAL: Final = web.RequestKey("principal", Principal)


class Admission:
    """Admits requests.

    Args:
        keys: the valid ones; None admits every request, for a view that only this machine reaches.
        hosts: names by which clients may reach the view.
        wall_clock: nanoseconds since 1970 UTC, by which keys expire.
    """

    def __init__(self, keys: Keys | None, hosts: Hosts, wall_clock: Callable[[], int] = time.time_ns) -> None:
        self._keys = keys
        self._hosts = hosts
        self._wall_clock = wall_clock

    def use(self, keys: Keys) -> None:
        """Replace the valid keys."""
        self._keys = keys

    def admit(self, request: web.Request) -> None:
        """Note the request's principal in it; RefusedError if it has none, or may not read this path."""
        host = request.headers.get(hdrs.HOST)
        if not self._hosts.known(host):
            detail = "this Host is not a name of the view: use its address, or name the host in ONCE_VIEW_HOSTS"
            raise RefusedError(Refusal.HOST_UNKNOWN, detail)
        if self._keys is None or request.path in _WITHOUT_KEY:
            return
        headers = [_bearer(text) for text in request.headers.getall(hdrs.AUTHORIZATION, ())]
        try:
            principal = self._keys.authenticate(headers, self._wall_clock() // 1_000_000)
        except KeyRefusedError as error:
            raise RefusedError(Refusal(error.reason.value), error.detail) from None
        _check_scopes(principal, request)
        request[PRINCIPAL] = principal


def challenges() -> Sequence[str]:
    """The values of WWW-Authenticate of a 401."""
    return _CHALLENGES


def sender_of(request: web.Request) -> str | None:
    """The client that sent the request; None if no keys are asked for."""
    principal = request.get(PRINCIPAL)
    return None if principal is None else principal.client


def client_of(request: web.Request) -> str | None:
    """The client whose accounts alone the request may see; None if it may see all."""
    principal = request.get(PRINCIPAL)
    return None if principal is None or Scope.HOUSE in principal.scopes else principal.client


def check_owner(request: web.Request, account: str, owner: str) -> None:
    """Raise RefusedError unless the request may see the account."""
    if client_of(request) not in {None, owner}:
        raise RefusedError(Refusal.NOT_AUTHORISED, f"account {account} is not of your client: name one of your own")


def _check_scopes(principal: Principal, request: web.Request) -> None:
    if Scope.READ not in principal.scopes:
        detail = f"the key has no scope {Scope.READ}: send another key, or ask the operator for one with it"
        raise RefusedError(Refusal.NOT_AUTHORISED, detail)
    resource = request.match_info.route.resource
    if Scope.HOUSE not in principal.scopes and (resource is None or resource.canonical not in _OF_CLIENTS):
        detail = f"this path shows more than one client's accounts, which needs the scope {Scope.HOUSE} as well"
        raise RefusedError(Refusal.NOT_AUTHORISED, detail)


def _bearer(authorization: str) -> str:
    """An Authorization header with the password of HTTP Basic as a bearer token; any other as it is."""
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        _, _, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:  # it is not base64, or not of UTF-8
        return authorization
    return f"Bearer {password}"
