"""Unit tests of shared.events."""
