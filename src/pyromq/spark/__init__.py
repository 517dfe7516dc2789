"""RocketMQ topics as Spark tables and streams, and jobs on them, through PySpark.

    spark.read.format("rocketmq").option("nameserver", "localhost:9876")
         .option("subscribe", "Orders").load()

Needs the extra `pyromq[spark]`. Spark finds the format by itself (`pyspark_rocketmq`). Importing
the package loads nothing.
"""
