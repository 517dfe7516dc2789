"""The JVM and the Python workers behind a Spark session, and tasks on them."""
