"""Origins of record bytes: brokers over TCP, and store directories."""
