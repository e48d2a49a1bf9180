"""Tests: unit and property for what is pure; contract and integration against real brokers."""
