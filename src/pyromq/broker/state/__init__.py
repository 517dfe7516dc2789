"""Tables of the broker: the persistent ones and those of connected clients."""
