"""The `pyromq` command line, one module per subcommand."""
