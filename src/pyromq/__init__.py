"""Apache RocketMQ's system in Python, compatible with RocketMQ 4.9 on the wire and on disk."""

from pyromq import moved

__version__ = "0.1.0"

moved.install()
