"""One message: its record on disk and on the wire, properties, flags, identifiers."""
