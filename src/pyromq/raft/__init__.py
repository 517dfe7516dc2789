"""Replicate the log in a raft group, compatible with Java's DLedger 0.3.1.2."""
