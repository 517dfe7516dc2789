"""What several kinds of tests and the benchmark share."""
