"""Consume queues, their extension files, and reading messages through them."""
