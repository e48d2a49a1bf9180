"""Real Kafka brokers on this machine."""
