"""Bench tests."""
