"""Tools to inject faults into a running cluster."""
