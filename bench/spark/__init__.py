"""`make bench-spark`: topics on Spark, beside Spark's own Kafka connector."""
