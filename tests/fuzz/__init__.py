"""Malformed bytes for every decoder: by Hypothesis in the test run, by coverage in `make fuzz`."""
