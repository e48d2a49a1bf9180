"""Instruments made from rows of the catalogue."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from shared.telemetry.catalogue import Kind, Metric
from shared.telemetry.instruments import ReadGauge, at_zero, counter, histogram

LAG = Metric("once_things_lag", Kind.GAUGE, "things", "Things.", ("topic", "partition"))
ERRORS = Metric("once_things_total", Kind.COUNTER, "things", "Things.", ("api", "error"))
SECONDS = Metric("once_things_seconds", Kind.HISTOGRAM, "seconds", "Things.", (), "", (0.1, 1.0))


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_gauge_is_read_when_it_is_scraped_and_goes_with_its_source() -> None:
    registry = CollectorRegistry()
    lag = ReadGauge(LAG, registry)
    values = {"a": 1.0, "b": 2.0}
    remove = lag.add(lambda: [(("a", "0"), values["a"])])
    lag.add(lambda: [(("b", "1"), values["b"])])
    assert shown(registry) == [
        'once_things_lag{partition="0",topic="a"} 1.0',
        'once_things_lag{partition="1",topic="b"} 2.0',
    ]
    values["b"] = 0.0
    remove()
    remove()
    assert shown(registry) == ['once_things_lag{partition="1",topic="b"} 0.0']


def test_a_successor_hides_its_predecessor_while_both_are_there() -> None:
    registry = CollectorRegistry()
    lag = ReadGauge(LAG, registry)
    lag.add(lambda: [(("a", "0"), 1.0)])
    remove = lag.add(lambda: [(("a", "0"), 2.0)])
    assert shown(registry) == ['once_things_lag{partition="0",topic="a"} 2.0']
    remove()
    assert shown(registry) == ['once_things_lag{partition="0",topic="a"} 1.0']


def test_an_instrument_is_made_once_for_each_row() -> None:
    registry = CollectorRegistry()
    ReadGauge(LAG, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        ReadGauge(LAG, registry)


def test_counters_can_be_shown_before_anything_is_counted() -> None:
    registry = CollectorRegistry()
    errors = counter(ERRORS, registry)
    at_zero(errors, ["EndTxn", "Produce"], ["fenced"])
    assert shown(registry) == [
        'once_things_total{api="EndTxn",error="fenced"} 0.0',
        'once_things_total{api="Produce",error="fenced"} 0.0',
    ]


def test_buckets_are_those_of_the_row() -> None:
    registry = CollectorRegistry()
    histogram(SECONDS, registry).observe(0.5)
    assert [line for line in shown(registry) if "bucket" in line] == [
        'once_things_seconds_bucket{le="0.1"} 0.0',
        'once_things_seconds_bucket{le="1.0"} 1.0',
        'once_things_seconds_bucket{le="+Inf"} 1.0',
    ]
