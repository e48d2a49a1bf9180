"""Effects of every state in the topics, as an outbox leaves them, for tests of the commands that read them."""

from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import (
    Attempt,
    EffectRequest,
    EffectResult,
    EffectState,
    Trust,
    Waiting,
    encode_request,
    encode_result,
    encode_trust,
    encode_waiting,
)
from shared.events.headers import ORIGIN
from shared.kafka.client.idempotent import IdempotentWriter

PARTITION = 2
FIRST_MS = 1_767_600_000_000
ORIGIN_AT = b"payments.raw:2:7"
SENT, DOUBTFUL, FAILED, WAITING, RESENT, ASKED, HELD, BARE = (f"{number:032x}" for number in range(8))


def request(effect_id: str) -> EffectRequest:
    return EffectRequest(
        effect_id,
        "receipt",
        "debit",
        "mailto:anna@example.org",
        "anna",
        "p-1",
        "anna",
        "2026-01-05",
        "bert",
        amount_minor=-500,
        currency="EUR",
        reference="rent [may]",
    )


def result(effect_id: str, state: EffectState, minute: int, revision: int = 1, reason: str = "") -> EffectResult:
    kept = None if state is EffectState.SENT else request(effect_id)
    return EffectResult(
        effect_id, state, FIRST_MS + 60_000 * minute, 2, revision, revision - 1, reason, "said so", kept
    )


def waiting(effect_id: str, revision: int = 0) -> Waiting:
    source = f"{EFFECTS_REQUESTS}:2:0"
    tried = (Attempt(FIRST_MS, 12, "unknown: no answer"),)
    return Waiting(
        request(effect_id),
        source,
        ORIGIN_AT.decode(),
        3,
        FIRST_MS,
        FIRST_MS,
        0,
        revision,
        detail="no answer",
        tried=tried,
    )


async def write_everything(brokers: str) -> None:
    """Write the records of an outbox."""
    async with IdempotentWriter(brokers) as writer:

        async def send(topic: str, key: str, value: bytes | None) -> None:
            await writer.send(topic, PARTITION, key.encode(), value, ((ORIGIN, ORIGIN_AT),))

        for effect_id in (SENT, DOUBTFUL, FAILED, WAITING, RESENT, ASKED):
            await send(EFFECTS_REQUESTS, "anna", encode_request(request(effect_id)))
        # The last record of SENT counts, not its earlier ones
        await send(EFFECTS_RESULTS, SENT, encode_result(result(SENT, EffectState.IN_DOUBT, 0)))
        await send(EFFECTS_RESULTS, DOUBTFUL, encode_result(result(DOUBTFUL, EffectState.IN_DOUBT, 3, 4)))
        await send(EFFECTS_RESULTS, FAILED, encode_result(result(FAILED, EffectState.FAILED, 1, reason="refused")))
        await send(EFFECTS_RESULTS, RESENT, encode_result(result(RESENT, EffectState.FAILED, 2, reason="refused")))
        await send(EFFECTS_RESULTS, SENT, encode_result(result(SENT, EffectState.SENT, 5, 2)))
        await send(EFFECTS_RESULTS, HELD, encode_result(result(HELD, EffectState.SENT, 4)))
        await send(EFFECTS_DEAD_LETTER, "anna", encode_request(request(FAILED)))
        await send(EFFECTS_WAITING, f"waiting/{SENT}", encode_waiting(waiting(SENT)))
        await send(EFFECTS_WAITING, f"waiting/{SENT}", None)
        await send(EFFECTS_WAITING, f"waiting/{WAITING}", encode_waiting(waiting(WAITING)))
        await send(EFFECTS_WAITING, f"waiting/{RESENT}", encode_waiting(waiting(RESENT, 1)))
        await send(EFFECTS_WAITING, "trust/redis", encode_trust(Trust("one")))
        # Not written by any outbox
        bare = encode_result(result(BARE, EffectState.FAILED, 0))
        await writer.send(EFFECTS_RESULTS, PARTITION, BARE.encode(), bare)
