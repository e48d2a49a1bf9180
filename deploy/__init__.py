"""Everything to run the system: the local stack, the command line, images and monitoring."""
