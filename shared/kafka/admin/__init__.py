"""Administration of topics, access rules, groups, offsets and transactions."""
