"""The local stack: its components, the process that keeps them running, and what it writes down about them."""
