"""The session: what it asks the JVM."""

from typing import Any

import pytest
from py4j.clientserver import JavaClient  # type: ignore[import-untyped] # it has no types
from py4j.protocol import REFLECTION_COMMAND_NAME  # type: ignore[import-untyped] # likewise
from pyspark.sql import Column, SparkSession, functions


def expression() -> Column:
    return functions.coalesce(functions.col("amount").cast("long"), functions.lit(1))


@pytest.mark.usefixtures("spark")
def test_names_of_the_jvm_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expression()
    asked: list[str] = []
    original = JavaClient.send_command

    def counted(self: JavaClient, command: str, *rest: Any, **options: Any) -> Any:
        asked.append(command)
        return original(self, command, *rest, **options)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    expression()
    assert asked
    assert [command for command in asked if command.startswith(REFLECTION_COMMAND_NAME)] == []


def test_a_class_that_is_remembered_makes_objects(spark: SparkSession) -> None:
    """As pyspark needs for a second session of the process, after the first has ended."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    made = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")(context.sc(), {})
    assert made.version() == spark.version
