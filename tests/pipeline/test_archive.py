"""The driver starts from the archive of its classes."""

from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from deploy.local.jars import spark_archive_path


def test_the_driver_maps_the_archive_of_its_classes(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2]"
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(spark_archive_path()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
