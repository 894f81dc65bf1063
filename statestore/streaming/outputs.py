"""Outputs of a query: rows to a Delta table or to Kafka, and a state to Spark's own operators.

A query passes its rows to the output before it commits the micro-batch. If the query is killed in
between, the same micro-batch runs again and passes the same rows with the same number. A Delta
table gets them exactly once, Kafka at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from statestore.delta.append_once import append_once
from statestore.delta.delta_rs import refuse_forked
from statestore.restore.restored import RestoredKeyedState
from statestore.spark.tasks import number_columns
from statestore.streaming.planned import MicroBatch

Output = Callable[[DataFrame, MicroBatch], None]


def to_delta(
    url: str, *, name: str = "output", storage_options: Mapping[str, str] | None = None
) -> Output:
    """Return an output that appends each micro-batch's rows to a Delta table, exactly once.

    The first rows create the table. Each commit records query and micro-batch as Delta's
    application transaction (Delta protocol, Transaction Identifiers). A micro-batch that the table
    already has is not written again. The rows of a micro-batch pass through the driver. They are
    durable before the checkpoint is committed, also on a local disk.

    Args:
        url: the table, a path or URL.
        name: distinguishes the outputs of one query that write to the same table.
        storage_options: options for delta-rs to access the table.
    """
    options = dict(storage_options or {})

    def write(rows: DataFrame, batch: MicroBatch) -> None:
        refuse_forked(url)
        append_once(
            url,
            rows.toArrow,
            application=f"{batch.query}/{name}",
            number=batch.number,
            options=options,
        )

    return write


def to_kafka(
    servers: str, topic: str, *, key: str | None = None, options: Mapping[str, str] | None = None
) -> Output:
    """Return an output that writes each row as JSON to a Kafka topic, at least once.

    If a micro-batch runs again, its rows are written again. A consumer that must not process a row
    twice has to recognize duplicates by their content. It needs Spark's Kafka connector.

    Args:
        servers: the brokers, as ``kafka.bootstrap.servers``.
        topic: the topic.
        key: the column that becomes the key of the messages; by default none.
        options: options of Spark's Kafka sink, such as ``kafka.security.protocol``. For example,
            ``kafka.delivery.timeout.ms`` (120,000) limits how long rows wait for a broker.
    """
    kafka_options = {**(options or {}), "kafka.bootstrap.servers": servers, "topic": topic}

    def write(rows: DataFrame, batch: MicroBatch) -> None:
        columns = zip(number_columns(rows).columns, rows.columns, strict=True)
        fields = {name: F.col(number).alias(name) for number, name in columns}
        values = [F.to_json(F.struct(*fields.values())).alias("value")]
        if key is not None:
            values.append(fields[key].cast("string").alias("key"))
        number_columns(rows).select(*values).write.format("kafka").options(**kafka_options).save()

    return write


def initial_state(state: RestoredKeyedState) -> GroupedData:
    """Return a restored state as a grouped DataFrame for ``initialState=``.

    ``transformWithState`` and ``transformWithStateInPandas`` take it: the stored rows, grouped by
    key. Spark shuffles them once, by its own hash of the key, when the query starts for the first
    time. Raises InvalidArgumentError when the store was opened without Spark.
    """
    return state.to_spark().drop("key_group").groupBy(*state.entry.state.key)
