"""The same hop as a process of its own: each input record to one of three output partitions, in transactions."""
