"""What a running service shows of itself: metrics, health, logs. Knows no service and no Kafka client."""
