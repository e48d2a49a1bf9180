"""Files to payments, and a bank's own balances as an oracle. Parsing, mapping and the oracle are pure."""
