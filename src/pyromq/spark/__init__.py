"""Topics as tables and streams, and the data pipeline, on Spark through PySpark.

    spark.read.format("rocketmq").option("nameserver", "localhost:9876")
         .option("subscribe", "Orders").load()

Needs the extra `pyromq[spark]`. The format is found by Spark itself (`pyspark_rocketmq`).
Everything heavy is imported where it is used: this package costs nothing to name.
"""
