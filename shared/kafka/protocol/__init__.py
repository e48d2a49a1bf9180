"""Kafka's messages as bytes, by Kafka's own definitions of them."""
