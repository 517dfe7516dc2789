"""Small building blocks that every layer shares; nothing here knows about messages."""
