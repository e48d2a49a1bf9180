"""How the system runs: the local stack, the command line, images and monitoring."""
