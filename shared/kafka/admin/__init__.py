"""Topics, access rules, groups, offsets and transactions, as an administrator handles them."""
