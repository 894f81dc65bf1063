"""Delta tables are read as their logs say, or refused by the name of the feature.

The logs have the shape that Delta for Spark writes; the last test lets Spark write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.tables import open_table

Json = dict[str, Any]


def column(name: str, data_type: Any, nullable: bool = True, **metadata: Any) -> Json:
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": metadata}


def mapped(number: int, name: str, physical: str, data_type: Any) -> Json:
    """A column of a table with column mapping: its id, its name, and its name in files."""
    prefix = "delta.columnMapping"
    metadata: Json = {f"{prefix}.id": number, f"{prefix}.physicalName": physical}
    return column(name, data_type, **metadata)


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def write_table(
    path: Path,
    files: Sequence[pa.Table],
    fields: Sequence[Json],
    *,
    features: Sequence[str] | None = None,
    mapping: str | None = None,
    partition: Mapping[str, str | None] | None = None,
) -> str:
    """Write a table; without ``features`` its protocol is older than features."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    protocol: Json = {"minReaderVersion": 2, "minWriterVersion": 5}
    if features is not None:
        names = {"readerFeatures": [*features], "writerFeatures": [*features]}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **names}
    properties = {} if mapping is None else {"delta.columnMapping.mode": mapping}
    columns = {field["name"]: field for field in fields}
    physical = "delta.columnMapping.physicalName"
    metadata = {
        "id": "00000000-0000-0000-0000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(struct(*fields)),
        "partitionColumns": [
            name
            for name in columns
            if columns[name]["metadata"].get(physical, name) in (partition or ())
        ],
        "configuration": properties,
        "createdTime": 1,
    }
    actions: list[Json] = [{"protocol": protocol}, {"metaData": metadata}]
    for number, rows in enumerate(files):
        name = f"part-{number}.parquet"
        pq.write_table(rows, path / name)
        add = {
            "path": name,
            "partitionValues": dict(partition or {}),
            "size": (path / name).stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
        actions.append({"add": add})
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(path)


def read(place: str) -> list[Json]:
    table = open_table(place)
    rows = pa.Table.from_batches(list(table.batches()), table.schema)
    assert table.rows == len(rows)
    found: list[Json] = sorted(rows.to_pylist(), key=str)
    return found


OLD = pa.table({"k": ["a", "b"], "net": [1, 2], "gross": [10, 20]})
NEW = pa.table({"k": ["c"], "gross": [30], "col-7f3c": [3]})
K = mapped(1, "k", "k", "string")
NESTED = pa.table(
    {
        "k": ["a", "b", "c"],
        "s": [{"x": 1, "y": 2}, None, {"x": None, "y": 4}],
        "l": pa.array([[{"lx": 1}, None], [], None], pa.list_(pa.struct([("lx", pa.int64())]))),
        "m": pa.array(
            [[("q", {"mx": 1})], None, [("r", None)]],
            pa.map_(pa.string(), pa.struct([("mx", pa.int64())])),
        ),
    }
)
S = struct(
    mapped(7, "z", "x", "long"), mapped(8, "y", "y", "long"), mapped(9, "x", "col-9", "long")
)
L = struct(mapped(10, "x", "col-10", "long"), mapped(11, "z", "lx", "long"))
M = struct(mapped(12, "z", "mx", "long"))
CASES: dict[str, tuple[list[pa.Table], list[Json], list[Json]]] = {
    "only enabled": (
        [OLD],
        [K, mapped(2, "net", "net", "long"), mapped(3, "gross", "gross", "long")],
        OLD.to_pylist(),
    ),
    "renamed": (
        [OLD],
        [K, mapped(2, "net_eur", "net", "long"), mapped(3, "gross", "gross", "long")],
        [{"k": "a", "net_eur": 1, "gross": 10}, {"k": "b", "net_eur": 2, "gross": 20}],
    ),
    "swapped": (
        [OLD],
        [K, mapped(2, "gross", "net", "long"), mapped(3, "net", "gross", "long")],
        [{"k": "a", "gross": 1, "net": 10}, {"k": "b", "gross": 2, "net": 20}],
    ),
    "dropped and added again": (
        [OLD, NEW],
        [K, mapped(3, "gross", "gross", "long"), mapped(4, "net", "col-7f3c", "long")],
        [
            {"k": "a", "gross": 10, "net": None},
            {"k": "b", "gross": 20, "net": None},
            {"k": "c", "gross": 30, "net": 3},
        ],
    ),
    "nested": (
        [NESTED, NESTED.slice(1)],
        [
            K,
            mapped(2, "s", "s", S),
            mapped(3, "l", "l", {"type": "array", "elementType": L, "containsNull": True}),
            mapped(
                4,
                "m",
                "m",
                {
                    "type": "map",
                    "keyType": "string",
                    "valueType": M,
                    "valueContainsNull": True,
                },
            ),
        ],
        sorted(
            [
                {
                    "k": "a",
                    "s": {"z": 1, "y": 2, "x": None},
                    "l": [{"x": None, "z": 1}, None],
                    "m": [("q", {"z": 1})],
                },
                *[{"k": "b", "s": None, "l": [], "m": None}] * 2,
                *[{"k": "c", "s": {"z": None, "y": 4, "x": None}, "l": None, "m": [("r", None)]}]
                * 2,
            ],
            key=str,
        ),
    ),
}


@pytest.mark.parametrize("features", [None, ["columnMapping"]], ids=["version 2", "feature"])
@pytest.mark.parametrize("mapping", ["name", "id"])
@pytest.mark.parametrize("case", CASES)
def test_columns_are_found_by_their_mapping(
    case: str, mapping: str, features: list[str] | None, tmp_path: Path
) -> None:
    files, fields, expected = CASES[case]
    if mapping == "id":
        files = [with_other_names(file, fields) for file in files]
    assert (
        read(write_table(tmp_path, files, fields, features=features, mapping=mapping)) == expected
    )


def with_other_names(rows: pa.Table, fields: Sequence[Json]) -> pa.Table:
    """Rows whose columns only their ids identify."""
    numbers = {}

    def collect(data_type: Any) -> None:
        if isinstance(data_type, dict):
            for child in ("elementType", "keyType", "valueType"):
                collect(data_type.get(child))
            for field in data_type.get("fields", ()):
                metadata = field["metadata"]
                name = metadata["delta.columnMapping.physicalName"]
                numbers[name] = metadata["delta.columnMapping.id"]
                collect(field["type"])

    def renamed(field: pa.Field) -> pa.Field:
        number = str(numbers.get(field.name, 99))
        metadata = {"PARQUET:field_id": number}
        return pa.field(f"old-{number}", other(field.type), metadata=metadata)

    def other(data_type: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(data_type):
            return pa.struct([renamed(field) for field in data_type])
        if pa.types.is_map(data_type):
            return pa.map_(data_type.key_type, other(data_type.item_type))
        if pa.types.is_list(data_type):
            return pa.list_(other(data_type.value_type))
        return data_type

    collect(struct(*fields))
    schema = pa.schema([renamed(field) for field in rows.schema])
    columns = [
        array.combine_chunks().view(field.type)
        for array, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def test_a_mapped_partition_column(tmp_path: Path) -> None:
    fields = [K, mapped(2, "day", "col-9", "date")]
    files = [pa.table({"k": ["a"], "day": ["of another column"]})]
    partition = {"col-9": "2026-01-02"}
    place = write_table(tmp_path, files, fields, mapping="name", partition=partition)
    assert read(place) == [{"k": "a", "day": date(2026, 1, 2)}]


def test_values_of_widened_types(tmp_path: Path) -> None:
    old = {
        "k": ["a"],
        "v": pa.array([1], pa.int16()),
        "f": pa.array([0.5], pa.float32()),
        "d": [date(1, 1, 1)],
        "c": pa.array([Decimal("1.5")], pa.decimal128(5, 2)),
    }
    types = {"k": "string", "v": "long", "f": "double", "d": "timestamp_ntz", "c": "decimal(12,4)"}
    fields = [column(name, data_type) for name, data_type in types.items()]
    place = write_table(
        tmp_path, [pa.table(old)], fields, features=["typeWidening", "timestampNtz"]
    )
    assert read(place) == [
        {"k": "a", "v": 1, "f": 0.5, "d": datetime(1, 1, 1), "c": Decimal("1.5000")}
    ]


def test_times_of_spark_outside_of_nanoseconds(tmp_path: Path) -> None:
    """Spark writes INT96, which has no zone."""
    times = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)]
    place = write_table(tmp_path, [], [column("t", "timestamp"), column("k", "string")])
    rows = pa.table({"k": ["a", "b"], "t": pa.array(times, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "0.parquet", use_deprecated_int96_timestamps=True)
    add = {"path": "0.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1}
    entry = json.dumps({"add": {**add, "dataChange": True, "stats": '{"numRecords": 2}'}})
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(entry)
    expected = [time.replace(tzinfo=UTC) for time in times]
    assert [row["t"] for row in read(place)] == expected


def test_char_values_are_padded_as_in_spark(tmp_path: Path) -> None:
    char = column("k", "string", __CHAR_VARCHAR_TYPE_STRING="char(3)")
    varchar = column("v", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")
    rows = pa.table({"k": ["a", "é  "], "v": ["b", None]})
    assert read(write_table(tmp_path, [rows], [char, varchar])) == [
        {"k": "a  ", "v": "b"},
        {"k": "é  ", "v": None},
    ]


@pytest.mark.parametrize(
    "feature",
    [
        *("v2Checkpoint", "vacuumProtocolCheck", "timestampNtz", "typeWidening", "variantType"),
        *("typeWidening-preview", "variantType-preview", "variantShredding", "deletionVectors"),
    ],
)
def test_features_that_leave_the_files_as_they_are(feature: str, tmp_path: Path) -> None:
    fields = [column("k", "string"), column("v", "long")]
    rows = pa.table({"k": ["a"], "v": [1], "_row-id-col-1": [7]})
    assert read(write_table(tmp_path, [rows], fields, features=[feature])) == [{"k": "a", "v": 1}]


ROWS = pa.table({"k": ["a"], "v": [1]})
TEXT, NUMBER = column("k", "string"), column("v", "long")
REFUSED: dict[str, tuple[Json, str, type[StateStoreError]]] = {
    "unknown feature": ({"features": ["somethingNew"]}, "somethingNew", InvalidArgumentError),
    "catalog": ({"features": ["catalogManaged"]}, "catalogManaged", InvalidArgumentError),
    "variant": (
        {"fields": [TEXT, column("v", "variant")], "features": ["variantType"]},
        "'v' has type variant",
        UnsupportedTypeError,
    ),
    "interval": ({"fields": [TEXT, column("v", "interval day")]}, "interval", UnsupportedTypeError),
    "geometry": ({"fields": [TEXT, column("v", "geometry")]}, "geometry", InvalidArgumentError),
    "nested char": (
        {
            "fields": [
                TEXT,
                column(
                    "v",
                    {"type": "array", "elementType": "string", "containsNull": True},
                    __CHAR_VARCHAR_TYPE_STRING="array<char(3)>",
                ),
            ]
        },
        r"'v' has the type array<char\(3\)>",
        InvalidArgumentError,
    ),
    "no ids": (
        {"fields": [K, mapped(2, "v", "v", "long")], "mapping": "id"},
        "no field ids.*column mapping",
        InvalidArgumentError,
    ),
    "no physical names": ({"mapping": "name"}, "Column mapping", CorruptionError),
    "missing": (
        {"fields": [TEXT, column("w", "long", nullable=False)]},
        r"part-0\.parquet lacks the column 'w', which cannot be null",
        InvalidArgumentError,
    ),
    "other case": (
        {"fields": [TEXT, column("V", "long")]},
        r"part-0\.parquet lacks the column 'V', which is named 'v'",
        InvalidArgumentError,
    ),
    "other type": (
        {"fields": [TEXT, column("v", "string")]},
        r"'v' of .*part-0\.parquet has type long instead of string",
        InvalidArgumentError,
    ),
    "structs for text": (
        {"fields": [TEXT, column("v", struct(NUMBER))]},
        r"'v' of .*part-0\.parquet has type long instead of struct",
        InvalidArgumentError,
    ),
    "binary partition": (
        {"fields": [TEXT, column("p", "binary")], "partition": {"p": "a"}},
        "partition column 'p' is binary",
        InvalidArgumentError,
    ),
    "empty partition": (
        {"fields": [TEXT, column("p", "string")], "partition": {"p": ""}},
        "partition column 'p' has empty texts",
        InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_read_wrongly_is_refused(case: str, tmp_path: Path) -> None:
    given, message, error = REFUSED[case]
    options = dict(given)
    fields = options.pop("fields", [TEXT, NUMBER])
    with pytest.raises(error, match=message):
        read(write_table(tmp_path, [ROWS], fields, **options))


@pytest.mark.parametrize("value", ["a", "", "é", "\\u0061"])
def test_binary_partition_values_of_delta_rs_are_refused(value: str, tmp_path: Path) -> None:
    rows = pa.table({"k": ["a"], "p": [value.encode()]})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    with pytest.raises(InvalidArgumentError, match="partition column 'p' is binary"):
        open_table(str(tmp_path))


def test_partition_values_of_every_type(tmp_path: Path) -> None:
    values: Json = {
        "text": "a/b %41 é\\u0041",
        "long": -(2**63),
        "float": 0.1,
        "flag": True,
        "day": date(9999, 12, 31),
        "time": datetime(1, 1, 1, tzinfo=UTC),
        "none": None,
    }
    schema = pa.schema(
        [
            *(("text", pa.string()), ("long", pa.int64()), ("float", pa.float32())),
            *(("flag", pa.bool_()), ("day", pa.date32()), ("time", pa.timestamp("us", "UTC"))),
            *(("none", pa.string()), ("k", pa.string())),
        ]
    )
    rows = pa.Table.from_pylist([{**values, "k": "a"}], schema)
    write_deltalake(tmp_path, rows, partition_by=list(values))
    assert read(str(tmp_path)) == rows.to_pylist()


@pytest.mark.long
@pytest.mark.spark
def test_tables_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    """Spark and this package read the same rows of tables with several features."""
    nested = "s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
    row = "named_struct('x', 1, 'y', 'p'), array(named_struct('x', 7)), map('q', struct(8 AS x))"
    tables = {
        **{
            f"mapped by {mode}": (
                f"k STRING, net BIGINT, gross BIGINT, {nested}, day DATE",
                f"PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')",
                f"INSERT INTO {{0}} VALUES ('a', 1, 10, {row}, DATE '2026-01-02')",
                "ALTER TABLE {0} RENAME COLUMN net TO net_eur",
                "ALTER TABLE {0} RENAME COLUMN s.x TO z",
                "ALTER TABLE {0} RENAME COLUMN l.element.x TO z",
                "ALTER TABLE {0} RENAME COLUMN m.value.x TO z",
                "ALTER TABLE {0} RENAME COLUMN day TO d",
                "ALTER TABLE {0} DROP COLUMN gross",
                "ALTER TABLE {0} ADD COLUMNS (gross BIGINT)",
                "INSERT INTO {0} (k, net_eur, d, gross) VALUES ('b', 2, NULL, 20)",
            )
            for mode in ("name", "id")
        },
        "deletion vectors": (
            "k STRING, v INT, p STRING",
            "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            "INSERT INTO {0} SELECT id, id, IF(id % 2 = 0, 'a b', 'é%') FROM range(0, 20, 1, 1)",
            "DELETE FROM {0} WHERE v IN (3, 4, 18, 19)",
        ),
        "widened": (
            "k CHAR(3), v SMALLINT, t TIMESTAMP",
            "TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.checkpointPolicy' = 'v2')",
            "INSERT INTO {0} VALUES ('a', 1, TIMESTAMP '9999-12-31 00:00:00Z')",
            "ALTER TABLE {0} ALTER COLUMN v TYPE INT",
            "INSERT INTO {0} VALUES ('b', 70000, TIMESTAMP '0001-01-01 00:00:00Z')",
        ),
    }
    for name, (columns, properties, *statements) in tables.items():
        place = tmp_path / name.replace(" ", "-")
        table = f"delta.`{place}`"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING delta {properties}")
        for statement in statements:
            spark.sql(statement.format(table))
        rows = spark.table(table).toArrow().to_pylist()
        assert read(str(place)) == sorted(rows, key=str), name
