"""Check stored messages for gaps, duplicates and damage."""
