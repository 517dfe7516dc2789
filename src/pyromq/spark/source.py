"""The Spark format "rocketmq": batch and stream, read and write.

    spark.read.format("rocketmq").option("nameserver", "localhost:9876")
         .option("subscribe", "Orders").load()
    frame.write.format("rocketmq").option("nameserver", "localhost:9876")
         .option("topic", "Orders").mode("append").save()

Spark constructs the source from the options wherever it needs one: in the driver's planning
processes and, pickled with a reader or writer, in the tasks. So it holds only the options. It
imports readers and writers lazily, because Spark lists the columns in a process of its own that
needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyromq.spark.columns import check_wanted, never_null, schema
from pyromq.spark.options import Mode, ReadOptions

if TYPE_CHECKING:
    from pyromq.spark.reading.ranges import ReadPlan


class RocketMQDataSource(DataSource):
    """Topics of a cluster, or of a store directory."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return all columns, for reads without a schema."""
        return schema(ReadOptions.parse(self.options, Mode.ANY).include_properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        from pyromq.spark.reading.batch import batch_reader

        return batch_reader(self._plan(schema, Mode.BATCH))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for `spark.readStream`."""
        from pyromq.spark.reading.stream import StreamReader

        return StreamReader(self._plan(schema, Mode.STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `frame.write`."""
        from pyromq.spark.sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer for `frame.writeStream`."""
        from pyromq.spark.sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)

    def _plan(self, wanted: StructType, mode: Mode) -> ReadPlan:
        from pyromq.spark.reading.ranges import ReadPlan

        options = ReadOptions.parse(self.options, mode)
        check_wanted(wanted, options.include_properties)
        return ReadPlan(options, tuple(wanted.fieldNames()), never_null(wanted))
