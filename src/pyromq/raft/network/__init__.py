"""The network of a raft node: bodies as Java's JSON and as bytes of our own, and connections."""
