"""Messages: their record on disk and on the wire, properties, flags, ids."""
