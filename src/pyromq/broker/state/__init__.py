"""The broker's tables: persisted ones and those of who is connected."""
