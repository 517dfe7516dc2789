"""Filters that select a consumer's messages: by tags, or by SQL over properties."""
