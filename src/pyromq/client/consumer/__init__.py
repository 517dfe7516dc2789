"""Receiving: queue access, offsets, groups and assignment; one folder per consumer kind."""
