"""Which messages a consumer wants: by tags (SQL over properties will stand beside it)."""
