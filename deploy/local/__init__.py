"""The local stack: three Kafka brokers, a Redis and the services, as child processes on loopback ports."""
