"""Consume queues, their extension, and reading messages through them."""
