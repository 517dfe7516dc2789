"""Writing a DataFrame to topics."""
