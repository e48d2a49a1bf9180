"""One library for all services; it knows none of them."""
