"""Metrics and readiness of a broker, from its own tables at scrape time."""
