"""Rebuild and verify store directories with Spark."""
