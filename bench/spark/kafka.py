"""Fetches Spark's connector for Kafka from Maven Central. Called by bench/spark/__main__.py."""

from __future__ import annotations

import os
from typing import Final

from tests.support.apache_rocketmq import classpath

#: The newest version on Maven Central; it also runs on Spark 4.3.
CONNECTOR_VERSION: Final = "4.2.0"
#: The connector's dependencies that Spark does not contain. The token provider is not available
#: in the same version.
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)


def connector_jars() -> list[str]:
    """Return the jars that a session needs for the format "kafka"."""
    return classpath(*CONNECTOR, is_whole=True).split(os.pathsep)
