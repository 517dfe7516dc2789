"""A report on topics and groups as one HTML page."""
