"""Connections, routes and heartbeats of a client."""
