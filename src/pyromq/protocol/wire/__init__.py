"""Frames, headers and bodies of requests and responses."""
