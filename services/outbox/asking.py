"""What a round asks of Redis between its claims and its commit: calls begun, effects marked.

What holds: once Redis failed or another owner entered, nothing more is asked, and no further call is begun. The failure
is kept, not raised: calls that are under way must come to their end first.
"""

from collections.abc import Sequence

from services.outbox.claims import Claims, DistrustedError
from services.outbox.domain import Done, Later, Void
from services.outbox.marks import Mark, mark_of
from shared.eos.errors import FencedError


class Asking:
    """One round's questions.

    Args:
        claims: of the partition.

    Attributes:
        distrusted, fenced: how it failed; None while it has not.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._told: set[str] = set()
        self.distrusted: DistrustedError | None = None
        self.fenced: FencedError | None = None

    async def begin(self, effect_id: str) -> str | None:
        """Begin a call; why there must be none, or None."""
        if self._why() is None:
            try:
                await self._claims.begin(effect_id)
            except (DistrustedError, FencedError) as error:
                self._fail(error)
        return self._why()

    async def tell(self, done: Done) -> None:
        """Mark what became of one effect, without waiting for the rest of the round."""
        await self._mark([(done.job.effect_id, mark_of(done.result))])

    async def mark(self, decided: Sequence[Done | Later | Void]) -> list[Done | Later | Void]:
        """Mark what was not told yet, and give back the claims that are to be released.

        Returns:
            What was decided, as it is to be stored: with what Redis could not be told.
        """
        marks: list[tuple[str, Mark | None]] = []
        for decision in decided:
            effect_id = decision.job.effect_id
            if isinstance(decision, Done) and not decision.known and effect_id not in self._told:
                marks.append((effect_id, mark_of(decision.result)))
            elif isinstance(decision, Later) and decision.release:
                marks.append((effect_id, None))
        if marks:
            await self._mark(marks)
        if self.distrusted is None:
            return list(decided)
        # Redis may come back with claims whose calls were begun in it and then not made
        holder = self._claims.holder
        return [decision.unreleased(holder) if isinstance(decision, Later) else decision for decision in decided]

    async def _mark(self, marks: list[tuple[str, Mark | None]]) -> None:
        if self._why() is not None:
            return
        try:
            await self._claims.mark(marks)
        except (DistrustedError, FencedError) as error:
            self._fail(error)
        else:
            self._told.update(effect_id for effect_id, _ in marks)

    def _why(self) -> str | None:
        failure = self.fenced or self.distrusted
        return None if failure is None else str(failure)

    def _fail(self, error: DistrustedError | FencedError) -> None:
        if isinstance(error, FencedError):
            self.fenced = error
        else:
            self.distrusted = error
