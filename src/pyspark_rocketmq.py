"""Where Spark looks for the format "rocketmq": it imports every top-level `pyspark_*`."""

from __future__ import annotations

from pyromq.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
