"""Tests of the data pipeline, with a real Spark."""
