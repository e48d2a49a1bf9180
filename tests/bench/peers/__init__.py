"""Peers of the pipeline: the same work by other libraries, measured in turn on the same brokers."""
