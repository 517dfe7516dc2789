"""The key index, and the lane that builds it from the log."""
