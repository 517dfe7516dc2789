"""The source and the sink over mutual TLS: options of the format, and nothing plain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyromq.client import Message, Producer
from pyromq.spark.origins.settings import tls_options_of
from tests.interop.servers import PyromqServer
from tests.support.certificates import Certificates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def certs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def server(certs: Certificates) -> Iterator[PyromqServer]:
    properties = {"tls.config.file": certs["tls.properties"]}
    with PyromqServer(broker_properties=properties) as running:
        yield running


def test_rows_are_written_and_read_over_mutual_tls(
    spark: SparkSession, server: PyromqServer, certs: Certificates
) -> None:
    options = {"nameserver": server.namesrv_address, **tls_options_of(certs.tls())}
    with Producer.sync(server.namesrv_address, send_timeout=60.0, tls=certs.tls()) as producer:
        producer.send(Message("Rows", b"first"))  # makes the topic
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("rocketmq").options(topic="Rows", **options).mode("append").save()
    read = spark.read.format("rocketmq").options(subscribe="Rows", **options).load()
    bodies = {bytes(row.body).decode() for row in read.select("body").collect()}
    assert bodies == {"first", *map(str, range(1000))}
