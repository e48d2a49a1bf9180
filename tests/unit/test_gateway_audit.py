"""The gateway's audit: what is counted, when it is written, and that nothing is lost while Kafka is away."""

import asyncio
from collections import Counter
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import audit_log
from services.gateway.audit import USES_EVERY_MS, Audit
from services.gateway.audit_log import AuditLog
from shared.events.audit import KeyUsed, RequestsRefused, decode_audit, encode_audit
from shared.events.catalogue import OPERATIONS_AUDIT
from shared.events.partitions import partition_for
from shared.http.keys import DEFAULT_SCOPES, Keys, Principal, key_of
from tests.gateways import JSON, Log, gateway, let_in
from tests.harness import eventually
from tests.partitions import PARTITIONS
from tests.unit.test_gateway_domain import body

SHOP = Principal("shop", "ab" * 8, DEFAULT_SCOPES)
KIOSK = Principal("kiosk", "cd" * 8, DEFAULT_SCOPES)
AT_MS = 1_800_000_000_000


def used(requests: int, since_ms: int, at_ms: int, principal: Principal = SHOP) -> KeyUsed:
    return KeyUsed(
        client=principal.client,
        key_id=principal.key_id,
        requests=requests,
        since_ms=since_ms,
        at_ms=at_ms,
        instance="7",
    )


def test_the_first_use_is_due_at_once_and_further_ones_after_a_minute() -> None:
    audit = Audit("7")
    audit.used(SHOP, AT_MS)
    assert audit.take(AT_MS + 1) == [used(1, AT_MS, AT_MS)]
    audit.used(SHOP, AT_MS + 2)
    audit.used(SHOP, AT_MS + 9)
    audit.used(KIOSK, AT_MS + 9)
    assert audit.take(AT_MS + 10) == [used(1, AT_MS + 9, AT_MS + 9, KIOSK)]
    assert audit.take(AT_MS + USES_EVERY_MS) == []
    assert audit.take(AT_MS + 1 + USES_EVERY_MS) == [used(2, AT_MS + 2, AT_MS + 9)]
    assert audit.take(AT_MS + 2 * USES_EVERY_MS + 1) == []


def test_uses_are_due_when_the_clock_was_set_back() -> None:
    audit = Audit("7")
    audit.used(SHOP, AT_MS)
    audit.take(AT_MS)
    audit.used(SHOP, AT_MS - 3_600_000)
    assert audit.take(AT_MS - 3_600_000) == [used(1, AT_MS - 3_600_000, AT_MS - 3_600_000)]


def test_a_gateway_that_stops_writes_all_uses() -> None:
    audit = Audit("7")
    audit.used(SHOP, AT_MS)
    audit.take(AT_MS)
    audit.used(SHOP, AT_MS + 1)
    assert audit.take(AT_MS + 2, stopping=True) == [used(1, AT_MS + 1, AT_MS + 1)]


requests = st.tuples(st.sampled_from([None, SHOP, KIOSK]), st.sampled_from("ab"), st.sampled_from(["x", "y"]))


@given(st.lists(requests | st.none(), max_size=60), st.data())
def test_refused_requests_are_counted_once_whatever_could_not_be_written(
    asked: list[tuple[Principal | None, str, str] | None], data: st.DataObject
) -> None:
    audit, written, now_ms = Audit("7"), Counter[tuple[str, str, str, str]](), AT_MS

    def write(*, failing: bool) -> None:
        for event in audit.take(now_ms):
            assert isinstance(event, RequestsRefused)
            assert AT_MS <= event.since_ms <= event.at_ms <= now_ms
            if failing and data.draw(st.booleans()):
                audit.give_back(event)
            else:
                written[event.client, event.key_id, event.route, event.reason] += event.requests

    for request in asked:
        now_ms += 1
        if request is None:
            write(failing=True)
        else:
            audit.refused(*request, now_ms)
    write(failing=False)
    given = [request for request in asked if request is not None]
    assert written == Counter(
        (*(("", "") if who is None else (who.client, who.key_id)), route, reason) for who, route, reason in given
    )


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_use_that_could_not_be_written_is_due_with_the_next(first: int, second: int) -> None:
    audit = Audit("7")
    for number in range(first):
        audit.used(SHOP, AT_MS + number)
    [event] = audit.take(AT_MS + first)
    for number in range(second):
        audit.used(SHOP, AT_MS + first + number)
    audit.give_back(event)
    assert audit.take(AT_MS + first + second) == [used(first + second, AT_MS, AT_MS + first + second - 1)]


async def test_events_are_written_when_kafka_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "WRITE_EVERY_S", 0.01)
    audit, writer = Audit("7"), Log()
    writer.failing = True
    writing = asyncio.create_task(AuditLog(audit, writer, PARTITIONS, lambda: AT_MS * 1_000_000).run())
    audit.used(SHOP, AT_MS)

    async def tried() -> bool:
        return writer.tried >= 3

    await eventually(tried, "three attempts")
    audit.used(SHOP, AT_MS)
    writer.failing = False

    async def written() -> bool:
        return bool(writer.records)

    await eventually(written, "the event is written")
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    [(topic, partition, key, value)] = writer.records
    assert (topic, partition, key) == (OPERATIONS_AUDIT, partition_for("shop", PARTITIONS), b"shop")
    assert decode_audit(value or b"") == used(2, AT_MS, AT_MS)


async def test_requests_over_http_are_counted_without_keys_paths_or_payloads() -> None:
    audit = Audit("7")
    access = let_in(Keys([key_of("shop", "secret-1"), key_of("shop", "secret-2", expires_at_ms=1)]), audit=audit)
    async with gateway(access=access, owner="shop") as site:
        for key in ("secret-1", "secret-1", "secret-2", "secret-3"):
            await site.post(body({}), JSON | {"Authorization": f"Bearer {key}"})
        await site.ask("GET", "/payments/a-private-name?partition=0&offset=0")
        await site.ask("GET", "/another-private-path")
    found = audit.take(AT_MS)
    first, late = (key_of("shop", f"secret-{number}").id for number in (1, 2))
    [use] = [event for event in found if isinstance(event, KeyUsed)]
    assert (use.client, use.key_id, use.requests) == ("shop", first, 2)
    assert sorted(
        (event.client, event.key_id, event.route, event.reason, event.requests)
        for event in found
        if isinstance(event, RequestsRefused)
    ) == [
        ("", "", "/payments", "key_unknown", 1),
        ("", "", "/payments/{payment_id}", "key_missing", 1),
        ("", "", "unmatched", "key_missing", 1),
        ("shop", late, "/payments", "key_expired", 1),
    ]
    text = msgspec.json.encode(found)
    assert b"secret" not in text
    assert b"private" not in text
    assert [decode_audit(encode_audit(event)) for event in found] == found
