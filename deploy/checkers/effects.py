"""The effects: each request has its posting, and each has one result (I11, and I7 and I8 of the effects' topics). Pure.

Feed the four topics after the postings in any order, and the sinks' logs at any time. Each
request is compared with its posting when it is fed; requests, results, dead letters and logs are joined at the end. Of
the outbox's changelog, only waiting effects are read. Resolutions request no effect.
"""

from collections.abc import Iterable, Mapping

from deploy.checkers.effect_outcomes import (
    ABANDONED,
    GONE,
    NO_SINK,
    STATES,
    EffectCounts,
    EffectRows,
    Outcomes,
    count,
    key_of,
)
from deploy.checkers.fingerprints import DECLINE, fingerprint, of_request
from deploy.checkers.intake import RAW_PREFIX
from deploy.checkers.offsets import NONE, named, parse_place, partition_of, place, readable
from deploy.checkers.ownership import Submitters
from deploy.checkers.postings import Postings
from deploy.checkers.subscribed import Subscribed
from deploy.checkers.transfers import DEBITED, LEG, OF_INSTALLATION, POSTED, Transfers
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import (
    EFFECTS_DEAD_LETTER,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    INSTALLATION,
    LEDGER_TRANSFERS,
)
from shared.events.effects import (
    WAITING_PREFIX,
    EffectFailure,
    EffectKind,
    EffectRequest,
    EffectState,
    Resolution,
    decode_request,
    decode_result,
    effect_id,
)
from shared.events.headers import ORIGIN, REPAIR, header
from shared.events.postings import CREDIT, DEBIT

FILE_SCHEME = "file:"

_EVENTS: Mapping[str, tuple[str, ...]] = {
    EffectKind.RECEIPT: (DEBIT,),
    EffectKind.NOTICE: (CREDIT,),
    EffectKind.DECLINE_NOTICE: (DECLINE,),
    EffectKind.EVENT: (DEBIT, CREDIT, DECLINE),
}


class Effects:
    """The records of the four effects topics, and the logs of the sinks.

    Args:
        file_sinks: whether the logs of all `file:` destinations are given. One without any log delivered nothing.
    """

    def __init__(
        self,
        findings: Findings,
        transfers: Transfers,
        postings: Postings,
        subscribed: Subscribed,
        submitters: Submitters,
        *,
        file_sinks: bool,
    ) -> None:
        self._findings = findings
        self._transfers = transfers
        self._postings = postings
        self._subscribed = subscribed
        self._submitters = submitters
        self._file_sinks = file_sinks
        self._rows = EffectRows()
        self._waiting: dict[bytes, int] = {}
        self._sinks: dict[int, str] = {}
        self.counts = EffectCounts()

    def feed_requests(self, partition: int, records: list[Record]) -> None:
        for record, at, where, request in readable(
            self._findings, EFFECTS_REQUESTS, partition, records, decode_request
        ):
            if isinstance(request, Resolution):
                continue
            key = self._key(request.effect_id, where)
            if key is None:
                continue
            self._rows.requests.add(key, at, self._sink(request.destination))
            source = self._source(record, where)
            self._check_id(request, record, source, where)
            if source != NONE:
                self._subscribed.request(request, source, repaired=header(record.headers, REPAIR) is not None)
                self._check_content(request, source, where)

    def _key(self, text: str, where: str) -> bytes | None:
        key = key_of(text)
        if key is None:
            self._findings.add(Kind.UNREADABLE, where, f"{text[:40]!r} is not an effect_id")
        return key

    def _sink(self, destination: str) -> int:
        if not self._file_sinks or not destination.startswith(FILE_SCHEME):
            return NO_SINK
        return fingerprint(destination)

    def _check_id(self, request: EffectRequest, record: Record, source: int, where: str) -> None:
        """Check the id in the form that the event names; that of an event which is missing is not known."""
        if source == NONE or not self._transfers.flags[source] & POSTED:
            return
        named = bool(self._transfers.flags[source] & OF_INSTALLATION)
        if named and not self._submitters.installation:
            self._findings.add(Kind.EFFECT_ALTERED, where, f"its id has an installation's, and {INSTALLATION} has none")
            return
        origin, installation = header(record.headers, ORIGIN) or b"", self._submitters.installation if named else ""
        right = effect_id(origin, request.kind, request.event, request.destination, installation=installation)
        if request.effect_id != right:
            self._findings.add(Kind.EFFECT_ALTERED, where, f"its effect_id should be {right}")

    def _source(self, record: Record, where: str) -> int:
        """Return the place in ledger.transfers whose posting it reports; NONE if there is no such record."""
        source = self._transfers.source_of(record, where)
        if source == NONE:
            return NONE
        if parse_place(header(record.headers, ORIGIN), RAW_PREFIX) != self._transfers.origin[source]:
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "another origin than its source has")
        if partition_of(source) != record.partition:
            self._elsewhere(where, partition_of(source))
        return source

    def _elsewhere(self, where: str, right: int) -> None:
        self._findings.add(Kind.EFFECT_ELSEWHERE, where, f"belongs on partition {right}")

    def _check_content(self, request: EffectRequest, source: int, where: str) -> None:
        flags = self._transfers.flags[source]
        ordered = named(LEDGER_TRANSFERS, source)
        posted = CREDIT if flags & LEG else DEBIT if flags & DEBITED else DECLINE
        # A balance that did not change is reported to machines only: suspense took the account's place
        empty_report = request.amount_minor == 0 and request.kind != EffectKind.EVENT
        if not flags & POSTED:
            self._findings.add(Kind.EFFECT_UNFOUNDED, where, f"nothing was posted for {ordered}")
        elif request.event != posted or request.event not in _EVENTS.get(request.kind, ()) or empty_report:
            found = f"{request.kind!r} of a {request.event!r}"
            self._findings.add(Kind.EFFECT_UNFOUNDED, where, f"{found}, but for {ordered} there is a {posted}")
        elif "@" in request.account:
            self._findings.add(Kind.EFFECT_UNFOUNDED, where, f"{request.account} is a house account")
        elif of_request(request) != self._postings.reports[source]:
            self._findings.add(Kind.EFFECT_ALTERED, where, f"differs from what was posted for {ordered}")

    def feed_results(self, partition: int, records: list[Record]) -> None:
        for record in records:
            at = place(partition, record.offset)
            where = named(EFFECTS_RESULTS, at)
            text = (record.key or b"").decode(errors="replace")
            key = self._key(text, where)
            if key is None:
                continue
            if record.value is None:
                self._rows.results.add(key, at, GONE, 0, 0)
                continue
            try:
                result = decode_result(record.value)
                state = STATES[EffectState(result.state)]
            except ValueError as error:
                self._findings.add(Kind.UNREADABLE, where, str(error))
                continue
            if result.effect_id != text:
                self._findings.add(Kind.EFFECT_ALTERED, where, f"its key is {text}, it says {result.effect_id[:40]!r}")
            if state == STATES[EffectState.FAILED] and result.reason == EffectFailure.ABANDONED:
                state = ABANDONED
            self._rows.results.add(key, at, state, count(result.revision), count(result.resends))

    def feed_waiting(self, partition: int, records: list[Record]) -> None:
        for record in records:
            name = record.key or b""
            if not name.startswith(WAITING_PREFIX):
                continue
            at = place(partition, record.offset)
            key = self._key(name[len(WAITING_PREFIX) :].decode(errors="replace"), named(EFFECTS_WAITING, at))
            if key is None:
                continue
            if record.value is None:
                self._waiting.pop(key, None)
            else:
                self._waiting[key] = at

    def feed_dead_letter(self, partition: int, records: list[Record]) -> None:
        """Take records of effects.dead-letter: the requests as they were."""
        for _, at, where, request in readable(self._findings, EFFECTS_DEAD_LETTER, partition, records, decode_request):
            key = self._key(request.effect_id, where)
            if key is not None:
                self._rows.letters.add(key, at)

    def feed_sink(self, destination: str, effect_ids: Iterable[str]) -> None:
        """Take the log of a sink: the effect_ids of its deliveries, in their order."""
        sink = fingerprint(destination)
        self._sinks[sink] = destination
        for number, text in enumerate(effect_ids, 1):
            key = key_of(text)
            if key is None:
                self._findings.add(Kind.EFFECT_PHANTOM, f"{destination}:{number}", f"{text[:40]!r} is not an effect_id")
            else:
                self._rows.deliveries.add(key, sink, number)

    def finish(self, committed_outbox: Mapping[int, int], beginnings: Mapping[int, int]) -> None:
        """Join everything and run the final checks.

        Args:
            committed_outbox: the outbox's offsets, by partition.
            beginnings: the first offset of each partition of effects.requests that is still there. Requests end after
                some days, results do not: where it is above 0, what has no request cannot be judged.
        """
        for partition, beginning in beginnings.items():
            committed = committed_outbox.get(partition, 0)
            if committed < beginning:
                detail = f"processed up to {committed}, and the log begins at {beginning}: requests expired unprocessed"
                self._findings.add(Kind.EFFECT_MISSING, f"{EFFECTS_REQUESTS}:{partition}", detail)
        outcomes = Outcomes(self._findings, self._sinks, self._waiting, beginnings, committed_outbox)
        self.counts = outcomes.judge(self._rows)
