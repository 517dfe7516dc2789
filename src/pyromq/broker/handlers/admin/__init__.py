"""Handlers of requests from administrators and tools."""
