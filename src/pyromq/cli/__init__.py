"""The command line: `pyromq` and its subcommands, one module each."""
