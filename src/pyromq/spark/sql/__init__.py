"""Query topics with SQL."""
