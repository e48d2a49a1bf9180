"""Metrics of committed outputs: repeats and dead letters."""

from shared.eos.records import Output
from shared.events.catalogue import PAYMENTS_DEAD_LETTER, PAYMENTS_DEDUPLICATED
from shared.events.dead_letters import Reason
from shared.events.headers import REASON, header
from shared.telemetry import metrics
from shared.telemetry.instruments import at_zero

at_zero(metrics.DEAD_LETTERS, [reason.value for reason in Reason])


def count_outcomes(outputs: list[Output]) -> None:
    """Count the repeats and the dead letters among a committed transaction's outputs."""
    repeats = 0
    for output in outputs:
        if output.topic == PAYMENTS_DEAD_LETTER:
            metrics.DEAD_LETTERS.labels((header(output.headers, REASON) or b"unknown").decode()).inc()
        elif output.topic == PAYMENTS_DEDUPLICATED:
            repeats += 1
    if repeats:
        metrics.DEDUPLICATED.inc(repeats)
