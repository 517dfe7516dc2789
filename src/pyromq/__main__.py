"""`python -m pyromq` is `pyromq`."""

from __future__ import annotations

from pyromq.cli.main import main

if __name__ == "__main__":
    main()
