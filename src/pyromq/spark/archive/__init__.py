"""Write topics to Parquet files, each message exactly once."""
