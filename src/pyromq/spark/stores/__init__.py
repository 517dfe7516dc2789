"""Rebuilding and verifying store directories as Spark jobs."""
