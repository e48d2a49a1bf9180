"""A rule at work: what it has done so far, waits for it, and the release of what it holds."""

import asyncio
import time
from collections.abc import Callable, Mapping

from deploy.drills.proxy.requests import Request
from deploy.drills.proxy.rules import Act, Evidence, Rule
from deploy.drills.waiting import waiting_for
from shared.kafka.protocol.codec import Values

DEADLINE_S = 60.0


class NotInjectedError(AssertionError):
    """A rule did not match or act in time, so the drill proves nothing; the message has its evidence."""


class Injection:
    """A rule that a proxy applies.

    Attributes:
        rule: the rule.
        evidence: what it matched and did.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.evidence = Evidence()
        self._changed = asyncio.Event()
        self._released = asyncio.Event()

    async def matched(self, times: int = 1, within_s: float = DEADLINE_S) -> None:
        """Wait until so many requests have matched since the rule was added.

        Raises:
            NotInjectedError: they have not.
        """
        await self._until(lambda: self.evidence.matches >= times, f"{times} matches", within_s)

    async def acted(self, times: int = 1, within_s: float = DEADLINE_S) -> None:
        """Wait until the rule has begun to act so often.

        Raises:
            NotInjectedError: it has not.
        """
        await self._until(lambda: len(self.evidence.acts) >= times, f"{times} acts", within_s)

    async def done(self, times: int = 1, within_s: float = DEADLINE_S) -> None:
        """Wait until so many acts are done: whatever was held, late or repeated has been delivered and answered.

        Raises:
            NotInjectedError: they are not.
        """
        await self._until(lambda: self.evidence.done >= times, f"{times} acts done", within_s)

    def release(self) -> None:
        """Deliver what the rule holds, and hold nothing from now on."""
        self._released.set()

    def raise_if_idle(self) -> None:
        """Raise NotInjectedError unless the rule has acted, and all of its acts are done."""
        if not self.evidence.acts or self.evidence.done < len(self.evidence.acts):
            raise NotInjectedError(f"{self.rule}: {self.evidence}")

    def note(self, request: Request, topic_ids: Mapping[bytes, str], *, may_act: bool) -> Act | None:
        """Count a request if the rule selects it; see `Evidence.note`."""
        if not self.rule.selects(request, topic_ids):
            return None
        act = self.evidence.note(self.rule, request, time.time(), may_act=may_act)
        self._change()
        return act

    async def due(self, seconds: float | None) -> None:
        """Wait so many seconds; None: until the release."""
        if seconds is None:
            await self._released.wait()
        else:
            await asyncio.sleep(seconds)

    def finish(self, act: Act, answer: Values | None = None) -> None:
        """Note that an act is done, with the answer."""
        act.is_done, act.answer = True, answer
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, reached: Callable[[], bool], what: str, within_s: float) -> None:
        try:
            with waiting_for(f"{what} of {self.rule}"):
                async with asyncio.timeout(within_s):
                    while not reached():
                        await self._changed.wait()
        except TimeoutError as error:
            raise NotInjectedError(f"not within {within_s} s: {what} of {self.rule}; {self.evidence}") from error
