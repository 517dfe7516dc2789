"""Reads the topic `orders` as a streaming table; each run appends new messages."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


@dp.table(comment="The messages of the topic orders, with their bodies as text")
def orders() -> DataFrame:
    spark = SparkSession.active()
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameserver", os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.select(
        "msgId", "tags", "keys", f.col("body").cast("string").alias("text"), "storeTimestamp"
    )
