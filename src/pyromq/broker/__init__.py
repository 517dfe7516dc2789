"""The broker. `broker.py` starts and stops it, `assembly.py` puts its parts together."""
