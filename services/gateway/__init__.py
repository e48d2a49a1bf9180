"""The gateway: payments over HTTP into payments.raw, acknowledged only when Kafka has them."""
