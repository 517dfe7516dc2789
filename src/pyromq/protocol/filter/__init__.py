"""Which messages a consumer wants: by tags, or by SQL over properties."""
