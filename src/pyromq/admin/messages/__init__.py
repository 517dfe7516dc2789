"""Messages: find, read, send and resend them; dead letters, half messages, delayed messages."""
