"""The table in Markdown, a row for each fault and a column for each program; and what is wrong in it. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from tests.drills.transactions.cell import NOT_SENT, Outcome
from tests.drills.transactions.faults import Fault, Kind
from tests.drills.transactions.hop import CONTROL, PROGRAMS

OURS: Final = frozenset(program.name for program in PROGRAMS if program.module == "hop")
LATE_ENDS: Final = frozenset(str(Fault("EndTxn", kind)) for kind in (Kind.DOUBLED, Kind.LATE))
CONTROLLED: Final = LATE_ENDS | {str(Fault("TxnOffsetCommit", kind)) for kind in (Kind.DOUBLED, Kind.LATE)}
"""Faults by which the control duplicates records: where it does not, the drill finds nothing."""


def findings(found: Sequence[Outcome]) -> list[str]:
    """Return what makes the run fail.

    Aborted reads of this project's runtime by a late EndTxn in version 1 of the protocol do not. The late EndTxn ends
    the next transaction, before its offsets are added. The runtime then completes the transaction from the logs.
    """
    wrong: list[str] = []
    for one in found:
        is_needless = one.fault is None or one.evidence == NOT_SENT
        if not one.is_injected and not is_needless:
            wrong.append(f"{one.program}, {one.fault}: the fault was not made: {one.evidence}")
        is_known = one.program == "once v1" and one.fault in LATE_ENDS
        if one.program in OURS and any(one.anomalies._replace(aborted_read=0) if is_known else one.anomalies):
            wrong.append(f"{one.program}, {one.fault or 'no fault'}: {one.anomalies}")
        if one.program == CONTROL and one.fault in CONTROLLED and not one.anomalies.duplicated:
            wrong.append(f"{one.program}, {one.fault}: no duplicate was found, so the drill proves nothing")
    return wrong


def markdown(found: Sequence[Outcome]) -> str:
    """Format the outcomes."""
    programs = list(dict.fromkeys(one.program for one in found))
    faults = list(dict.fromkeys(one.fault for one in found))
    cells = {(one.fault, one.program): one for one in found}
    rows = [[fault or "no fault", *(_cell(cells.get((fault, name))) for name in programs)] for fault in faults]
    return "\n".join(_lines(["fault", *programs], rows))


def _cell(one: Outcome | None) -> str:
    """Describe the anomalies, restarts, requests in a transaction, and the evidence of the fault."""
    if one is None:
        return ""
    if one.fault is not None and not one.is_injected:
        return one.evidence if one.evidence == NOT_SENT else f"NOT INJECTED: {one.evidence}"
    text = str(one.anomalies)
    text = f"**{text}**" if any(one.anomalies) else text
    ends = f"; ends {', '.join(map(str, one.ends))}" if one.ends else ""
    evidence = f"; {one.evidence}" if one.evidence else ""
    return f"{text}{ends}; {one.requests_per_transaction} req{evidence}"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
