"""The broker: takes, keeps and gives messages. `broker.py` builds it, `routes.py` says who serves what."""
