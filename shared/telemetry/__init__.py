"""Metrics, health and logs of a running service. Knows no service and no Kafka client."""
