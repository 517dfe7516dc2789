"""Encode and decode RocketMQ's formats. Pure: no socket, file, clock or event loop."""
