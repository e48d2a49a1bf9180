"""Sample data that the project carries, and what is planted into it for the demonstration."""
