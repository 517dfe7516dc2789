"""The broker. `broker.py` builds it, `routes.py` says who serves which request."""
