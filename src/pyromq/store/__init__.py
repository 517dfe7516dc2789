"""The storage engine: commit log, consume queues, key index. Knows no network."""
