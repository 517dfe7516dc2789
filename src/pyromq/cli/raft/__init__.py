"""`pyromq raft`: status, transfer of leadership, and check of the files of a raft group."""
