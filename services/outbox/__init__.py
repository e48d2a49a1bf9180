"""outbox: each committed intent becomes one effect outside of Kafka."""
