"""Faults of requests: the proxy loses, holds, delays or repeats requests of one kind, or their answers."""

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.proxy.injection import Injection, NotInjectedError
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.rules import Rule
from deploy.drills.target import Target
from shared.kafka.protocol.codec import Values


class OnRequests:
    """A rule of the proxy.

    Args:
        name: what happens to which requests, such as `answer to Produce lost`.

    Attributes:
        injection: the rule at work, to wait for its acts and to release what it holds; None before `inject`.
    """

    def __init__(self, proxy: Proxy, rule: Rule, name: str) -> None:
        self.name = name
        self._proxy = proxy
        self._rule = rule
        self.injection: Injection | None = None

    async def inject(self, target: Target) -> str:  # noqa: ARG002 # a fault's signature
        """Apply the rule from now on. Its evidence comes with the requests: `acted`."""
        self.injection = self._proxy.add(self._rule)
        return ""

    async def acted(self, times: int = 1, within_s: float = 30.0) -> str:
        """Wait until the rule has acted so often, and return what it did.

        Raises:
            NoEvidenceError: it has not, within `within_s` seconds.
        """
        if self.injection is None:
            raise NoEvidenceError(f"{self.name} was not injected")
        try:
            await self.injection.acted(times, within_s)
        except NotInjectedError as error:
            raise NoEvidenceError(str(error)) from error
        evidence = self.injection.evidence
        return f"{len(evidence.acts)} of {evidence.matches} {self._rule.api} requests"

    async def released(self) -> list[Values | None]:
        """Deliver what the rule holds, and return the brokers' answers to each act when they have come.

        Raises:
            NoEvidenceError: the rule was not injected, or an answer does not come.
        """
        if self.injection is None:
            raise NoEvidenceError(f"{self.name} was not injected")
        self.injection.release()
        acts = self.injection.evidence.acts
        try:
            await self.injection.done(len(acts))
        except NotInjectedError as error:
            raise NoEvidenceError(str(error)) from error
        return [act.answer for act in acts]

    async def heal(self, target: Target) -> None:  # noqa: ARG002 # a fault's signature
        """Deliver what the rule holds, and apply it no longer."""
        if self.injection is not None:
            self._proxy.remove(self.injection)
            self.injection = None
