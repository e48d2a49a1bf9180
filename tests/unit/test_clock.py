"""The bound of a clock's skew must be above 0. Real brokers are in tests/integration."""

import asyncio
import math

import pytest

from shared.kafka.admin.clock import check_clock
from shared.kafka.runtime.process import exit_code
from shared.settings import MonitorSettings


@pytest.mark.parametrize(("skew_s_max", "shown"), [(0.0, "0"), (-1.5, "-1.5"), (math.nan, "nan")])
def test_a_bound_that_no_clock_or_every_clock_meets_is_refused(
    skew_s_max: float, shown: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONCE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ONCE_CLOCK_SKEW_S_MAX", str(skew_s_max))
    monkeypatch.setattr("shared.kafka.runtime.process.logs.configure", lambda *_, **__: None)

    def work(settings: MonitorSettings) -> int:
        asyncio.run(check_clock(settings.bootstrap_servers, settings.clock_skew_s_max))
        return 0

    assert exit_code("monitor", MonitorSettings, work) == 78
    [line] = caplog.records
    assert line.message == "settings refused"
    assert line.__dict__["reason"] == f"ONCE_CLOCK_SKEW_S_MAX is {shown}: set it above 0"
