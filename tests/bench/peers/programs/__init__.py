"""The measured programs, each a process of its own."""
