"""The gateway's access control over real HTTP: keys, rates, bounds on bodies and slow clients; and its logs."""

import asyncio
import io
import logging
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from services.gateway.access import Access, RateLimiter
from services.gateway.audit import Audit
from services.gateway.service import BODY_BYTES_LEAST, BODY_BYTES_MOST
from shared.events.postings import AccountTerms
from shared.http.keys import Keys, key_of
from shared.http.serving import SERVER_LOG
from shared.telemetry.logs import JsonFormatter
from tests.gateways import JSON, Site, gateway, let_in
from tests.unit.test_gateway_domain import body

KEY = "once_the-shops-own-key-4711"
EXPIRED_AT_MS = 1_000_000_000_000
KEYS = Keys([key_of("shop", KEY), key_of("kiosk", "another"), key_of("shop", "late", expires_at_ms=EXPIRED_AT_MS)])
WITH_KEY = JSON | {"Authorization": f"Bearer {KEY}"}


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Every log line as the gateway writes it, debug lines included."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter("gateway", "0"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(before)


async def raw(site: Site, *parts: str) -> bytes:
    """Return the answer to these bytes until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.url.port)
    writer.write("".join(parts).encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
async def test_a_client_with_a_key_is_admitted(scheme: str) -> None:
    async with gateway(access=let_in(KEYS), owner="shop") as site:
        status, _, headers = await site.post(body({}), JSON | {"Authorization": f"{scheme} {KEY}"})
        assert status == 202
        status, _, _ = await site.ask("GET", headers["Location"], headers={"Authorization": f"{scheme} {KEY}"})
        assert status == 200


@pytest.mark.parametrize(
    ("headers", "error", "challenge"),
    [
        ({}, "key_missing", 'Bearer realm="payments"'),
        ({"Authorization": KEY}, "key_missing", 'Bearer realm="payments"'),
        ({"Authorization": "Bearer "}, "key_missing", 'Bearer realm="payments"'),
        ({"Authorization": f"Basic {KEY}"}, "key_missing", 'Bearer realm="payments"'),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, "key_unknown", 'Bearer realm="payments", error="invalid_token"'),
        ({"Authorization": f"Bearer {KEY}x"}, "key_unknown", 'Bearer realm="payments", error="invalid_token"'),
        ({"Authorization": "Bearer \u00e9"}, "key_unknown", 'Bearer realm="payments", error="invalid_token"'),
        ({"Authorization": "Bearer late"}, "key_expired", 'Bearer realm="payments", error="invalid_token"'),
    ],
)
@pytest.mark.parametrize("path", ["/payments", "/payments/p-1?partition=0&offset=0", "/nothing"])
async def test_a_client_without_a_key_is_401_with_what_to_send(
    headers: dict[str, str], error: str, challenge: str, path: str
) -> None:
    before = sample("once_http_access_refused_total", reason=error)
    async with gateway(access=let_in(KEYS), owner="shop") as site:
        method = "POST" if path == "/payments" else "GET"
        data = body({}) if method == "POST" else None
        status, answer, answered = await site.ask(method, path, data=data, headers=JSON | headers)
        assert (status, answer["error"], answered["WWW-Authenticate"]) == (401, error, challenge)
        assert "key" in answer["detail"]
        assert site.log.records == []
    assert sample("once_http_access_refused_total", reason=error) == before + 1


async def test_two_keys_in_one_request_are_refused() -> None:
    async with gateway(access=let_in(KEYS), owner="shop") as site:
        twice = f"Authorization: Bearer {KEY}\r\n" * 2
        answer = await raw(site, f"GET /payments/p HTTP/1.1\r\nHost: localhost\r\n{twice}Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
async def test_the_documentation_needs_no_key(path: str) -> None:
    async with gateway(access=let_in(KEYS), owner="shop") as site:
        assert (await site.ask("GET", path))[0] in {200, 302}


async def test_the_document_describes_keys() -> None:
    async with gateway() as site:
        document = (await site.ask("GET", "/openapi.json"))[1]
        assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        assert document["paths"]["/payments"]["post"]["security"] == [{"key": []}]
        page = (await site.ask("GET", "/docs"))[1].decode()
        assert page.count("Authorization: Bearer $KEY") == 8


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


async def test_new_keys_replace_the_old_ones_at_once() -> None:
    access = Access(KEYS, RateLimiter(1.0, 1), Audit("0"), Clock(), time.time_ns)
    async with gateway(access=access, owner="shop") as site:
        assert (await site.post(body({}), WITH_KEY))[0] == 202
        access.use(Keys([key_of("shop", "new")]))
        assert (await site.post(body({}), WITH_KEY))[0] == 401
        # The client is the same, and so is its rate
        assert (await site.post(body({}), JSON | {"Authorization": "Bearer new"}))[0] == 429


async def test_a_client_beyond_its_rate_is_429_and_admitted_after_retry_after() -> None:
    clock = Clock()
    before = sample("once_http_access_refused_total", reason="rate_exceeded")
    async with gateway(access=Access(KEYS, RateLimiter(0.4, 2), Audit("0"), clock, time.time_ns), owner="shop") as site:
        site.owners.opened["44"] = AccountTerms("kiosk", 1)
        assert [(await site.post(body({}), WITH_KEY))[0] for _ in range(2)] == [202, 202]
        status, answer, headers = await site.post(body({}), WITH_KEY)
        assert (status, answer["error"], headers["Retry-After"]) == (429, "rate_exceeded", "3")
        assert "after 3 s" in answer["detail"]
        kiosk = JSON | {"Authorization": "Bearer another"}
        assert (await site.post(body({"debtor": "44"}), kiosk))[0] == 202
        clock.now_ns += 3_000_000_000
        assert (await site.post(body({}), WITH_KEY))[0] == 202
        assert len(site.log.records) == 4
    assert sample("once_http_access_refused_total", reason="rate_exceeded") == before + 1
    assert sample("once_http_payments_refused_total", reason="rate_exceeded") >= 1


@pytest.mark.parametrize("bytes_max", [BODY_BYTES_LEAST, 100_000])
async def test_the_bound_of_a_body_is_as_set_and_documented(bytes_max: int) -> None:
    async with gateway(body_bytes_max=bytes_max) as site:
        assert (await site.post(body({}).ljust(bytes_max)))[0] == 202
        status, answer, _ = await site.post(body({}).ljust(bytes_max + 1))
        assert (status, answer["error"]) == (413, "too_large")
        assert str(bytes_max) in answer["detail"]
        document = (await site.ask("GET", "/openapi.json"))[1]
        assert str(bytes_max) in document["paths"]["/payments"]["post"]["responses"]["413"]["description"]


@pytest.mark.parametrize("bytes_max", [0, BODY_BYTES_LEAST - 1, BODY_BYTES_MOST + 1])
async def test_a_bound_that_is_too_small_or_too_large_is_refused(bytes_max: int) -> None:
    with pytest.raises(ValueError, match="ONCE_GATEWAY_BODY_BYTES_MAX"):
        async with gateway(body_bytes_max=bytes_max):
            pass


@pytest.mark.parametrize("sent", ["", "P", "POST /payments HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_a_client_that_stops_within_its_head_is_disconnected(sent: str) -> None:
    async with gateway(idle_timeout_s=0.3) as site:
        assert await raw(site, sent) == b""


async def test_a_client_that_sends_its_head_slowly_is_disconnected() -> None:
    async with gateway(idle_timeout_s=0.3) as site:
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.url.port)
        sent = 0

        async def dribble() -> None:
            nonlocal sent
            for byte in b"GET /docs HTTP/1.1\r\nX-Slow: " + b"a" * 1000:
                writer.write(bytes([byte]))
                sent += 1
                await asyncio.sleep(0.02)

        dribbling = asyncio.create_task(dribble())
        with suppress(ConnectionResetError):  # the answer to one more byte
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert time.monotonic() - begun > 0.2
        assert sent < 100, "not disconnected within 2 s"
        assert not dribbling.done()
        dribbling.cancel()
        await asyncio.wait([dribbling])
        writer.close()


async def test_an_idle_client_is_disconnected_after_an_answer() -> None:
    async with gateway(idle_timeout_s=0.3) as site:
        answer = await raw(site, "GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n", "G")
        assert answer.startswith(b"HTTP/1.1 200 ")


MALFORMED = [
    f"GET /docs HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer {KEY}\r\n\r\n",
    f"GET /docs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\x00\r\n\r\n",
    f"GET /docs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}{'x' * 9000}\r\n\r\n",
    f"GET /docs HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer {KEY}\r\n\r\n",
    f"Bearer {KEY}\r\n\r\n",
    f"GET /docs?key={KEY} HTTP/9.9\r\n\r\n",
]


@pytest.mark.parametrize("head", MALFORMED)
async def test_a_malformed_head_is_400_counted_and_never_logged(head: str, logged: io.StringIO) -> None:
    before = sample("once_http_malformed_total")
    async with gateway(access=let_in(KEYS), owner="shop") as site:
        assert (await raw(site, head)).split()[1] == b"400"
    assert sample("once_http_malformed_total") == before + 1
    assert KEY not in logged.getvalue()
    assert "Traceback" not in logged.getvalue()


async def test_no_key_is_ever_logged(logged: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(
        access=Access(KEYS, RateLimiter(0.01, 2), Audit("0"), time.monotonic_ns, time.time_ns), owner="shop"
    ) as site:
        site.log.failing = True
        for headers in (WITH_KEY, JSON | {"Authorization": f"Bearer {KEY}x"}, WITH_KEY, WITH_KEY):
            await site.post(body({}), headers)
        assert "kafka takes no payments" in logged.getvalue()

        def broken(_request: web.Request) -> None:
            raise RuntimeError("a defect")

        site.log.failing = False
        monkeypatch.setattr("services.gateway.service.document_answer", broken)
        status, _, _ = await site.ask("GET", "/openapi.json", headers=WITH_KEY)
        assert status == 500
    assert "a defect" in logged.getvalue()  # the server's log is captured
    assert KEY not in logged.getvalue()


def test_a_server_line_without_an_error_is_kept(logged: io.StringIO) -> None:
    SERVER_LOG.warning("something else")
    assert "something else" in logged.getvalue()
