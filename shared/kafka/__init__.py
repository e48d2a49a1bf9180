"""The only importer of aiokafka: transactional producer, scopes, sessions, readers, writers."""
