"""Register the format "rocketmq": Spark imports every top-level module named `pyspark_*`."""

from __future__ import annotations

from pyromq.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
