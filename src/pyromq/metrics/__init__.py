"""Metrics for Prometheus, and health over HTTP, for brokers and NameServers."""
