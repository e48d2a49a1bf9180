"""Services of one's own, on the public face of the runtime."""
