"""Drills under test: the alerts that faults raise, the queries of dashboards, and a transaction's requests."""
