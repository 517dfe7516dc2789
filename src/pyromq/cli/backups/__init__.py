"""`pyromq store backup`, `restore` and `backups`."""
