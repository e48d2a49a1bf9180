"""From records of effects.requests to jobs. Pure."""

from collections.abc import Callable, Iterator, Sequence

from services.outbox.domain import Job
from shared.eos.records import Record
from shared.events.codec import InternalInputError
from shared.events.effects import EffectRequest, Resolution, decode_request
from shared.events.headers import ORIGIN, Coordinates, header


def job_of(record: Record, takes_keys: Callable[[EffectRequest], bool], now_ms: int, *, doubtful: bool) -> Job:
    """The job of a record.

    Args:
        record: of effects.requests.
        takes_keys: whether a request's destination knows effects by their ids.
        now_ms: when it is taken up, milliseconds since 1970 UTC.
        doubtful: whether it may have been called already.

    Raises:
        InternalInputError: the record is not what the ledger or `once effects resolve` write.
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
    """The jobs in their order, cut so that no effect is in one run twice: each decision builds on the one before."""
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
