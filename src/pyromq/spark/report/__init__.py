"""Report on topics and consumer groups as one HTML page."""
