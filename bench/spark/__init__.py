"""`make bench-spark`: compare pyromq on Spark with Spark's own Kafka connector."""
