"""Client of Prometheus' HTTP API for drills and tests: queries, alerts, targets.

Each answer is decoded into a type; a malformed answer is an error, never an empty list. It must not know the targets.
"""

import http.client
from datetime import datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

_TIMEOUT_S = 5.0


class PrometheusError(RuntimeError):
    """Prometheus did not answer in time, refused the query, or answered something else."""


class Sample(NamedTuple):
    """One series' value at the time of the query."""

    labels: dict[str, str]
    value: float


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert that is pending or firing.

    Attributes:
        labels: those of its series and its rule, alertname among them.
        annotations: summary, description and the like, filled in.
        state: pending or firing.
        active_at: since when its expression has held.
    """

    labels: dict[str, str]
    annotations: dict[str, str]
    state: str
    active_at: datetime

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.labels["alertname"]


class ScrapedTarget(msgspec.Struct, frozen=True, rename="camel"):
    """One target as Prometheus sees it.

    Attributes:
        labels: job and instance among them.
        scrape_url: where it is scraped.
        health: up, down, or unknown before the first scrape.
        last_error: why the last scrape failed; empty when it did not.
    """

    labels: dict[str, str]
    scrape_url: str
    health: str
    last_error: str

    @property
    def up(self) -> bool:
        """Whether the last scrape was answered."""
        return self.health == "up"


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]  # the time in seconds since 1970, and the value as Go writes a float


class _Vector(msgspec.Struct):
    result: list[_Series]


class _Alerts(msgspec.Struct):
    alerts: list[Alert]


class _Targets(msgspec.Struct, rename="camel"):
    active_targets: list[ScrapedTarget]


class _Answer(msgspec.Struct):
    status: str
    error: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


_T = TypeVar("_T")


class Prometheus:
    """One Prometheus.

    Args:
        url: `http://host:port`, as `once up` shows it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = urlsplit(url).netloc

    def query(self, expression: str) -> list[Sample]:
        """The series that an expression has now; empty when there are none.

        Raises:
            PrometheusError: as it says; also when the expression is a scalar or a range.
        """
        found = self._get("query", _Vector, query=expression)
        return [Sample(series.metric, float(series.value[1])) for series in found.result]

    def alerts(self) -> list[Alert]:
        """All alerts that are pending or firing.

        Raises:
            PrometheusError: as it says.
        """
        return self._get("alerts", _Alerts).alerts

    def targets(self) -> list[ScrapedTarget]:
        """All targets, scraped or not.

        Raises:
            PrometheusError: as it says.
        """
        return self._get("targets", _Targets, state="active").active_targets

    def _get(self, what: str, kind: type[_T], **parameters: str) -> _T:
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", f"/api/v1/{what}?{urlencode(parameters)}")
            answer = msgspec.json.decode(connection.getresponse().read(), type=_Answer)
            if answer.status != "success":
                raise PrometheusError(f"{self.url} refuses {what} {parameters}: {answer.error}")
            return msgspec.json.decode(answer.data, type=kind)
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise PrometheusError(f"{self.url} gives no answer to {what} {parameters}: {error}") from error
        finally:
            connection.close()
