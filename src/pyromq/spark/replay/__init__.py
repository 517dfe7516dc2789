"""Sending archived messages to topics again."""
