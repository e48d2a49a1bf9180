"""What happens to requests and answers on their way."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol


class Fate(NamedTuple):
    """What happens to a request or an answer on its way.

    Attributes:
        more_s: how many seconds longer it takes.
        arrives: whether it does.
        held: takes what lets the request leave, some time later, when its client has lost the connection; None for one
            that leaves now.
        resets: whether its client learns at once that the connection is lost. What is lost takes the connection along.
    """

    more_s: float = 0.0
    arrives: bool = True
    resets: bool = False
    held: Callable[[Callable[[], None]], None] | None = None


USUAL: Final = Fate()


class Trouble(Protocol):
    """Decides what happens to each request and answer."""

    def of_request(self, client: str, request: bytes) -> Fate:
        """A request as it leaves."""

    def of_answer(self, client: str, request: bytes) -> Fate:
        """The answer to a request as it leaves; the work is done."""


class Calm:
    """No trouble."""

    def of_request(self, client: str, request: bytes) -> Fate:  # noqa: ARG002 # see Trouble
        return USUAL

    def of_answer(self, client: str, request: bytes) -> Fate:  # noqa: ARG002 # likewise
        return USUAL
