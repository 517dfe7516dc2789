"""Batch and streaming reads: positions, partitions, filters, decoding."""
