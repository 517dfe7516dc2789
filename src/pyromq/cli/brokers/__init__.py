"""The broker processes of `pyromq standalone --brokers`."""
