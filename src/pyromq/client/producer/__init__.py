"""Sending: producers, batching, transactions, request and reply."""
