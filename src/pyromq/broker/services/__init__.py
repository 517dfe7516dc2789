"""What the broker does by itself."""
