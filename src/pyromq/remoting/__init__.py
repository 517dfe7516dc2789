"""Asyncio shells around the protocol: a server and a client."""
