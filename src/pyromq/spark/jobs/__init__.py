"""The jobs of `pyromq spark JOB`, one file each; each can be imported and called as well."""
