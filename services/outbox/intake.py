"""From records of effects.requests to jobs, and from a decided effect to records. Pure."""

from collections.abc import Callable, Iterator, Sequence

from services.outbox.domain import Done, Job
from shared.eos.records import Output, Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_RESULTS
from shared.events.codec import InternalInputError
from shared.events.effects import EffectRequest, EffectState, Resolution, decode_request, encode_request, encode_result
from shared.events.headers import DETAIL, ORIGIN, REASON, SERVICE, SOURCE, Coordinates, header


def job_of(record: Record, takes_keys: Callable[[EffectRequest], bool], now_ms: int, *, doubtful: bool) -> Job:
    """Decode the job of a record of effects.requests, taken up at `now_ms`.

    It is doubtful if it may have been called already. Raises InternalInputError if the record is not what the ledger or
    `once effects resolve` write.
    """
    source = Coordinates(record.topic, record.partition, record.offset).encode()
    origin = header(record.headers, ORIGIN)
    try:
        decoded = decode_request(record.value or b"")
    except ValueError as error:
        raise InternalInputError(f"{source.decode()}: {error}") from error
    if origin is None:
        raise InternalInputError(f"{source.decode()} has no origin")
    if isinstance(decoded, Resolution):
        request, revision, action = decoded.request, decoded.revision, decoded.action
    else:
        request, revision, action = decoded, 0, None
    return Job(
        request,
        source,
        origin,
        record.offset,
        takes_keys(request),
        first_ms=now_ms,
        revision=revision,
        doubtful=doubtful,
        action=action,
    )


def runs_without_repeats(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut the jobs, in their order, so that no run has an effect twice: each decision builds on the one before."""
    run: list[Job] = []
    seen: set[str] = set()
    for job in jobs:
        if job.effect_id in seen:
            yield run
            run, seen = [], set()
        run.append(job)
        seen.add(job.effect_id)
    if run:
        yield run


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
