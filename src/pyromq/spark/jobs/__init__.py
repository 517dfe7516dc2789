"""The commands `pyromq spark JOB`, one module each, and the helpers they share."""
