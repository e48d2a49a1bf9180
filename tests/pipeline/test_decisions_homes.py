"""The partition of an account in SQL is that of the producers and services."""

import pytest
from pyspark.sql import SparkSession

from shared.events.partitions import partition_for
from spark.places import home
from tests.tiers import mostly_full

ALPHABET = "aZ09._-xY"
ACCOUNTS = [(ALPHABET * 8)[start : start + length] for start in range(9) for length in range(1, 65)]


@pytest.mark.parametrize("partitions", mostly_full([1, 6, 256], [6]))
def test_clients_live_where_kafkas_partitioner_puts_them(spark: SparkSession, partitions: int) -> None:
    rows = spark.range(1).selectExpr(f"explode(split('{' '.join(ACCOUNTS)}', ' ')) as account")
    found = rows.selectExpr("account", f"{home('account', partitions)} as home").collect()
    assert {row["account"]: row["home"] for row in found} == {
        account: partition_for(account, partitions) for account in ACCOUNTS
    }


def test_the_house_names_its_partition(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("explode(array('cash@3', 'in-transit@0', 'cash@x')) as account")
    found = [row["home"] for row in rows.selectExpr(f"{home('account', 6)} as home").collect()]
    assert found == [3, 0, None]
