"""What a store does before it serves: find the end of the log, rebuild what is missing."""
