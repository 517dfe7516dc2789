"""Comparing what producers sent, the archive and consumers."""
