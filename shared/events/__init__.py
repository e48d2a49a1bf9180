"""The events that services exchange: structs, codecs, schema versions, topics, partitions. Pure."""
