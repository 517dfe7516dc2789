"""Topics as Parquet files, committed exactly once."""
