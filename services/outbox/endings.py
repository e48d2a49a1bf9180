"""From decided effects to records, counts and the risk that is left. Pure, but for the counts."""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.outbox.domain import Done, Job, Later, Superseded
from services.outbox.marks import Risk
from shared.eos.records import Output
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_RESULTS, REFERENCE_ENDPOINTS
from shared.events.effects import EffectKind, EffectState, encode_request, encode_result
from shared.events.endpoints import Endpoint, encode_endpoint
from shared.events.headers import DETAIL, ORIGIN, REASON, SERVICE, SOURCE
from shared.events.partitions import partition_for
from shared.telemetry import catalogue
from shared.telemetry.instruments import at_zero, counter

EFFECTS = counter(catalogue.EFFECTS)
at_zero(EFFECTS, [kind.value for kind in EffectKind], [state.value for state in EffectState])
EFFECTS_REPEATED = counter(catalogue.EFFECTS_REPEATED)

log = logging.getLogger(__name__)


class Decided(NamedTuple):
    """What becomes of an effect in a transaction; `stored` if it is in effects.waiting."""

    job: Job
    decision: Done | Later | Superseded
    stored: bool


def endpoint_output(name: str, endpoint: Endpoint, partitions: int, source: bytes) -> Output:
    """The record of an endpoint's state."""
    partition = partition_for(name, partitions)
    return Output(REFERENCE_ENDPOINTS, partition, name.encode(), encode_endpoint(endpoint), ((SOURCE, source),))


def outputs_of(done: Done, partition: int) -> list[Output]:
    """The result, and a dead letter if the effect failed."""
    job, result = done.job, done.result
    headers = ((ORIGIN, job.origin), (SOURCE, job.source))
    outputs = [Output(EFFECTS_RESULTS, partition, result.effect_id.encode(), encode_result(result), headers)]
    if result.state == EffectState.FAILED:
        why = ((SERVICE, b"outbox"), (REASON, result.reason.encode()), (DETAIL, result.detail.encode()))
        key, value = job.request.account.encode(), encode_request(job.request)
        outputs.append(Output(EFFECTS_DEAD_LETTER, partition, key, value, (*headers, *why)))
    return outputs


def risk_after(risk: Risk, requests: Sequence[Job], endings: Sequence[Decided], next_offset: int) -> Risk:
    """The risk once this is committed: Kafka then knows of what was claimed, but not of what was not."""
    ids = {ending.job.effect_id for ending in endings}
    unclaimed = {job.effect_id for job, later, _ in endings if isinstance(later, Later) and not later.claimed}
    risky = {job.effect_id for job in requests[: risk.left] if job.sequence < risk.until}
    return risk.passed(len(requests), next_offset, ids - unclaimed, risky & unclaimed)


def count(endings: Iterable[Decided]) -> None:
    """Count effects that are decided, and log void decisions."""
    for job, decision, _ in endings:
        if isinstance(decision, Superseded):
            log.warning("decision void", extra={"effect_id": job.effect_id, "revision": job.revision})
        elif isinstance(decision, Done) and decision.known:
            EFFECTS_REPEATED.inc()
        elif isinstance(decision, Done):
            EFFECTS.labels(job.request.kind, decision.result.state).inc()
