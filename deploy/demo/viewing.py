"""The demonstration's third opinion: what the view shows, against the verifier and Spark at the same offsets (I12).

Invariant: the view is asked over HTTP, as any reader would, and only once it says itself that it has read all that was
committed. The three fold the same postings with code of their own.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from typing import Any

import msgspec

from deploy.checkers.verdict import Verdict
from deploy.demo.reconciling import Reconciled

CAUGHT_UP_S = 120.0
_POLL_S = 0.2
_TIMEOUT_S = 10.0


class ViewBehindError(RuntimeError):
    """The view did not read all postings in time, or did not answer; the message has its last answer."""


class Viewed(msgspec.Struct, frozen=True):
    """Figures of the view.

    Attributes:
        caught_up_s: seconds that it was waited for after the others had their figures.
        balances: digest of all balances that are not 0, as the verifier and Spark make it.
        next_offsets: how far it had read each partition of ledger.postings.
        currencies: by currency, the sum of all balances and what clients hold, in minor units.
    """

    caught_up_s: float
    balances: str
    next_offsets: dict[int, int]
    currencies: dict[str, tuple[int, int]]


async def view(endpoint: str, deadline_s: float = CAUGHT_UP_S) -> Viewed:
    """Wait until the view at `endpoint` has caught up, and ask for its totals.

    Raises:
        ViewBehindError: it has not caught up after `deadline_s` seconds.
    """
    begun, answer = time.monotonic(), "none"
    while True:
        try:
            found = await asyncio.to_thread(_get, f"{endpoint}/api/freshness")
            answer = json.dumps(found)
            if found["caught_up"]:
                break
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            answer = str(error)
        if time.monotonic() - begun > deadline_s:
            raise ViewBehindError(f"the view has not caught up after {deadline_s:g} s; last answer: {answer}")
        await asyncio.sleep(_POLL_S)
    waited_s = round(time.monotonic() - begun, 1)
    digest = await asyncio.to_thread(_get, f"{endpoint}/api/digest")
    totals = await asyncio.to_thread(_get, f"{endpoint}/api/totals")
    return Viewed(
        waited_s,
        digest["digest"],
        {one["partition"]: one["next_offset"] for one in digest["as_of"]},
        {
            one["currency"]: (int(one["sum_minor"]), int(one["clients"]["balance_minor"]))
            for one in totals["currencies"]
        },
    )


def differences(viewed: Viewed, verdict: Verdict, reconciliation: Reconciled) -> list[str]:
    """Describe where the view differs from the verifier or Spark. Pure."""
    others = {"the verifier": verdict.balances_digest, "Spark": reconciliation.balances}
    missing = [
        f"the view's balances are not those of {name}" for name, digest in others.items() if digest != viewed.balances
    ]
    counted = {
        one.currency: (int(one.closing_minor), int(one.clients_closing_minor)) for one in reconciliation.currencies
    }
    if counted != viewed.currencies:
        missing.append(f"the view's totals are {viewed.currencies}, those of Spark {counted}")
    return missing


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 # an address that the stack gave
        return json.load(answer)
