"""`pyromq admin`: the commands of mqadmin, and more."""
