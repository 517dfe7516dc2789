"""The push consumer: a handler called for each message."""
