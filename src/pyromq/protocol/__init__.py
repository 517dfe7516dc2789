"""Bytes to values and back. Pure: no socket, file, clock or event loop."""
