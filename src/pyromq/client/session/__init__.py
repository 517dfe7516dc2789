"""Connections, routes and heartbeats that all clients of a process share."""
