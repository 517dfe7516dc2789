"""`pyromq bench`: load, figures and plots."""
