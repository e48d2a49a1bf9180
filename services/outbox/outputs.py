"""What is written of a decided effect. Pure."""

from services.outbox.domain import Done
from shared.eos.records import Output
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_RESULTS
from shared.events.effects import EffectState, encode_request, encode_result
from shared.events.headers import DETAIL, ORIGIN, REASON, SERVICE, SOURCE


def outputs_of(done: Done, partition: int) -> list[Output]:
    """The result, and a dead letter where the effect failed."""
    job, result = done.job, done.result
    headers = ((ORIGIN, job.origin), (SOURCE, job.source))
    outputs = [Output(EFFECTS_RESULTS, partition, result.effect_id.encode(), encode_result(result), headers)]
    if result.state == EffectState.FAILED:
        why = (
            (SERVICE, b"outbox"),
            (REASON, result.reason.encode()),
            (DETAIL, result.detail.encode()),
        )
        key, value = job.request.account.encode(), encode_request(job.request)
        outputs.append(Output(EFFECTS_DEAD_LETTER, partition, key, value, (*headers, *why)))
    return outputs
