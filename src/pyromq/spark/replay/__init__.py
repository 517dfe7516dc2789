"""Send messages of an archive or a cluster again."""
