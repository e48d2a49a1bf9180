"""A proxy that loses, delays, holds and repeats Kafka's requests and answers by rules."""
