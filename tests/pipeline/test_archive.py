"""The driver starts from the archive of its classes."""

from pathlib import Path

import pytest
from pyspark import SparkContext

from deploy.local.jars import spark_archive_path


@pytest.mark.usefixtures("spark")
def test_the_driver_maps_the_archive_of_its_classes() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(spark_archive_path()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
