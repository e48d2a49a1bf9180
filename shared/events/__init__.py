"""What travels between services: structs, codecs, schema versions, topics, partitions. Pure."""
