"""Everything that talks to Kafka: the only importer of aiokafka. It knows no service."""
