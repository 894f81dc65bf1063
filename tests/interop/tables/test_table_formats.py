"""Tables of other systems are read as streams; their values are those that were written."""

from __future__ import annotations

import base64
import io
import threading
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.parquet import encryption

from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    SchemaMismatchError,
    StateStoreError,
)
from statestore.interop.tables import SourceTable, open_query, open_table
from statestore.storage import LocalStorage

ROWS = pa.table({"k": ["a", "b", None], "v": [1, None, 2**60]})


def read(table: SourceTable) -> pa.Table:
    return pa.Table.from_batches(list(table.batches()), table.schema)


def write(path: Path, rows: pa.Table = ROWS) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return str(path)


def test_a_parquet_file_and_a_folder(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t" / "1.parquet"))
    assert (table.rows, table.schema) == (3, ROWS.schema)
    assert read(table) == read(table) == ROWS
    write(tmp_path / "t" / "2.parquet", ROWS.slice(1))
    (tmp_path / "t" / "_SUCCESS").touch()
    whole = open_table(str(tmp_path / "t"))
    assert whole.rows == 5
    assert read(whole) == pa.concat_tables([ROWS, ROWS.slice(1)])


def test_columns_in_the_names_of_folders_are_text(tmp_path: Path) -> None:
    """They are not guessed: the shop 007 is not the number 7."""
    for shop in ("007", "a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / f"shop={shop}" / "1.parquet", ROWS.slice(0, 1))
    table = open_table(str(tmp_path))
    assert read(table).column("shop").to_pylist() == ["007", None, "a/b"]
    with pytest.raises(InvalidArgumentError, match=r"row 3 of .*'a/b'.*'shop'.*type long"):
        read(open_table(str(tmp_path), types={"shop": "long"}))


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    write(tmp_path / "2.parquet", ROWS.rename_columns(["k", "w"]))
    with pytest.raises(InvalidArgumentError, match=r"2\.parquet has other columns than 1\.parquet"):
        open_table(str(tmp_path))


def test_a_delta_table_in_its_newest_version(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS, partition_by=["k"])
    write_deltalake(str(tmp_path), ROWS, mode="append")
    DeltaTable(str(tmp_path)).delete("v = 1")
    table = open_table(str(tmp_path))
    rows = [(row["k"], row["v"]) for row in read(table).to_pylist()]
    assert sorted(rows, key=str) == [("b", None)] * 2 + [(None, 2**60)] * 2
    assert table.rows == 4


def test_a_delta_table_whose_files_lack_a_column(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    more = ROWS.append_column("more", pa.array([1.5, 2.5, 3.5]))
    write_deltalake(str(tmp_path), more, mode="append", schema_mode="merge")
    found = read(open_table(str(tmp_path))).column("more").to_pylist()
    assert sorted(found, key=str) == [1.5, 2.5, 3.5, None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "delta", "csv"])
def test_a_table_is_read_in_small_parts(form: str, tmp_path: Path) -> None:
    """Also if all of its rows are one row group: memory is bounded by buffers."""
    rows = pa.table({"k": [f"{number:01000}" for number in range(50_000)]})
    place = tmp_path / f"t.{form}"
    if form == "parquet":
        pq.write_table(rows, place, row_group_size=len(rows), compression="none")
    elif form == "delta":
        write_deltalake(str(place), rows)
    else:
        csv.write_csv(rows, place)
    table = open_table(str(place))
    size, most, found = rows.nbytes, 0, 0
    del rows
    before = pa.total_allocated_bytes()
    for batch in table.batches():
        most, found = max(most, pa.total_allocated_bytes() - before), found + batch.num_rows
    assert found == 50_000
    assert most < size / 2


def test_columns_of_csv_are_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,name,note\n007,"a, ""b""",\n1.10,"x\ny",""\n')
    expected = [
        {"id": "007", "name": 'a, "b"', "note": None},
        {"id": "1.10", "name": "x\ny", "note": ""},
    ]
    assert read(open_table(str(path))).to_pylist() == expected


@pytest.mark.parametrize(("suffix", "codec"), [(".gz", "gzip"), (".bz2", "bz2"), (".zst", "zstd")])
def test_a_compressed_csv_file(suffix: str, codec: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.csv{suffix}"
    with pa.output_stream(path, codec) as file:
        file.write(b"k,v\n" + b"a,1\n" * 100)
    assert read(open_table(str(path))).to_pylist() == [{"k": "a", "v": "1"}] * 100
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidArgumentError, match=f"is not a complete {codec} file"):
        read(open_table(str(path)))


@pytest.mark.parametrize(
    ("data_type", "text", "value"),
    [
        ("long", "9007199254740993", 2**53 + 1),
        ("integer", "-1", -1),
        ("double", "0.1", 0.1),
        ("double", "inf", float("inf")),
        ("double", "0.30000000000000004", 0.1 + 0.2),
        ("float", "0.1", 0.10000000149011612),
        ("boolean", "true", True),
        ("decimal(20,2)", "12345678901234567.89", Decimal("12345678901234567.89")),
        ("decimal(3,1)", "1.0e1", Decimal("10.0")),
        ("binary", "00fF", b"\x00\xff"),
        ("date", "0044-03-15", date(44, 3, 15)),
        ("string", "007", "007"),
    ],
)
def test_declared_types(data_type: str, text: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"k,v\na,{text}\nb,\n")
    rows = read(open_table(str(path), types={"v": data_type})).to_pylist()
    assert [row["v"] for row in rows] == [value, None]


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        ("long", "1.0"),
        ("long", "0x10"),
        ("long", "0xFFFFFFFFFFFFFFFF"),
        ("long", " 1"),
        ("long", "1_000"),
        ("integer", "0x10"),
        ("long", "9223372036854775808"),
        ("byte", "128"),
        ("double", "1e400"),
        ("double", "1e-400"),
        ("double", "9007199254740993"),
        ("double", "0x10"),
        ("double", " 1"),
        ("double", "1_000"),
        ("double", "nan(5)"),
        ("float", "16777217"),
        ("float", "1e-50"),
        ("double", "x"),
        ("decimal(5,2)", "1.234"),
        ("decimal(38,0)", "9" * 39),
        ("decimal(38,30)", "3065693547"),
        ("date", "2026-13-01"),
        ("date", "2026-1-05"),
        ("date", "10000-02-30"),
        ("timestamp_ntz", "2026-01-01T00:00:00.1234567"),
        ("timestamp", "2026-01-01 00:00:00"),
        ("boolean", "maybe"),
        ("boolean", "1"),
        ("binary", "0x"),
    ],
)
def test_a_text_of_another_type_is_named(data_type: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"k,v\na,\nb,{text}\n")
    table = open_table(str(path), types={"v": data_type})
    with pytest.raises(InvalidArgumentError) as caught:
        read(table)
    assert f"row 2 of {path} has {text!r} in the column 'v'" in str(caught.value)


@pytest.mark.parametrize(
    ("data_type", "text", "reason"),
    [
        ("timestamp", "2026-01-31T12:00:00", r"type timestamp \(a time with Z or an offset"),
        ("timestamp_ntz", "2026-01-31T12:00:00Z", r"timestamp_ntz \(a time without a zone\)"),
    ],
)
def test_a_time_with_the_wrong_form_of_zone_is_explained(
    data_type: str, text: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(f"v\n{text}\n")
    with pytest.raises(InvalidArgumentError, match=reason):
        read(open_table(str(tmp_path / "t.csv"), types={"v": data_type}))


def test_a_query_reads_files_and_can_run_again(tmp_path: Path) -> None:
    place = write(tmp_path / "1.parquet")
    table = open_query(f"SELECT k, count(*) AS n FROM '{place}' GROUP BY k ORDER BY k")
    assert read(table) == read(table)
    assert read(table).to_pylist() == [{"k": k, "n": 1} for k in ("a", "b", None)]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("DROP TABLE x", "is not a single SELECT"),
        ("SELECT 1; SELECT 2", "is not a single SELECT"),
        ("SELECT nope FROM 'missing.parquet'", r"cannot run .*missing\.parquet"),
        ("SELEC", "cannot run"),
    ],
)
def test_another_statement_is_refused(sql: str, error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        open_query(sql)


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    place = write(tmp_path / "1.parquet")
    tables = [open_table(place), open_query(f"SELECT * FROM '{place}'")]
    write(tmp_path / "1.parquet", ROWS.append_column("more", pa.array([1, 2, 3])))
    for table in tables:
        with pytest.raises(SchemaMismatchError, match=r"was changed while it was read.*more long"):
            read(table)


def broken(tmp_path: Path) -> dict[str, tuple[str, dict[str, Any], type[StateStoreError]]]:
    (tmp_path / "x.parquet").write_bytes(b"no Parquet file at all")
    whole = Path(write(tmp_path / "y.parquet")).read_bytes()
    (tmp_path / "y.parquet").write_bytes(whole[:4] + bytes(len(whole) - 8) + whole[-4:])
    (tmp_path / "x.csv").write_text("a,b\n1,2,3\n")
    (tmp_path / "several").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "several" / name).write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    log = tmp_path / "delta" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{")
    good = write(tmp_path / "good" / "1.parquet")
    return {
        "missing": (str(tmp_path / "nope.parquet"), {}, NotFoundError),
        "empty": (str(tmp_path / "empty"), {}, InvalidArgumentError),
        "no Parquet": (str(tmp_path / "x.parquet"), {}, InvalidArgumentError),
        "Parquet": (str(tmp_path / "y.parquet"), {}, CorruptionError),
        "several CSV": (str(tmp_path / "several"), {}, InvalidArgumentError),
        "CSV": (str(tmp_path / "x.csv"), {}, InvalidArgumentError),
        "Delta": (str(tmp_path / "delta"), {}, CorruptionError),
        "format": (good, {"file_format": "orc"}, InvalidArgumentError),
        "column": (good, {"types": {"x": "long"}}, InvalidArgumentError),
        "no text": (good, {"types": {"v": "double"}}, InvalidArgumentError),
        "type": (good, {"types": {"k": "int128"}}, InvalidArgumentError),
        "binary": (good, {"types": {"k": "binary"}}, InvalidArgumentError),
    }


@pytest.mark.parametrize(
    "case",
    [
        *("missing", "empty", "no Parquet", "Parquet", "several CSV", "CSV", "Delta"),
        *("format", "column", "no text", "type", "binary"),
    ],
)
def test_what_cannot_be_read_is_a_typed_error(case: str, tmp_path: Path) -> None:
    place, options, error = broken(tmp_path)[case]
    with pytest.raises(error):
        read(open_table(place, **options))


TIMES = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]


def write_int96(path: Path, times: pa.Array) -> str:
    count = len(times)
    lists = pa.ListArray.from_arrays(list(range(count + 1)), times)
    maps = pa.MapArray.from_arrays(list(range(count + 1)), ["k"] * count, lists.values)
    structs = pa.StructArray.from_arrays([times], ["t"])
    rows = pa.table({"t": times, "l": lists, "m": maps, "s": structs, "n": range(count)})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    return str(path)


def test_times_of_int96_are_read_in_every_year(tmp_path: Path) -> None:
    """As nanoseconds, 9999-12-31 would become a day in 1816."""
    times = pa.array(TIMES, pa.timestamp("us"))
    rows = read(open_table(write_int96(tmp_path / "1.parquet", times))).to_pylist()
    assert rows == [
        {"t": time, "l": [time], "m": [("k", time)], "s": {"t": time}, "n": number}
        for number, time in enumerate(TIMES)
    ]


def test_times_of_int96_with_nanoseconds_are_refused(tmp_path: Path) -> None:
    times = pa.array([1_000, None, 1_001], pa.timestamp("ns"))
    place = write_int96(tmp_path / "1.parquet", times)
    with pytest.raises(InvalidArgumentError, match=r"1\.parquet has times \(INT96\)"):
        read(open_table(place))


class OpenKeys(encryption.KmsClient):  # type: ignore[misc]
    """Keeps a key as it is."""

    def __init__(self, _config: encryption.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("plain_footer", [True, False])
def test_encrypted_files_are_refused(plain_footer: bool, tmp_path: Path) -> None:
    """Also if only one column is encrypted."""
    wanted = encryption.EncryptionConfiguration(
        footer_key="a", column_keys={"b": ["v"]}, plaintext_footer=plain_footer
    )
    factory = encryption.CryptoFactory(OpenKeys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    place = tmp_path / "1.parquet"
    with pq.ParquetWriter(place, ROWS.schema, encryption_properties=properties) as writer:
        writer.write_table(ROWS)
    with pytest.raises(InvalidArgumentError, match=r"1\.parquet is encrypted"):
        read(open_table(str(place)))


LOGS = [
    *("_delta_log/0.json", "_spark_metadata/0", ".hoodie/hoodie.properties"),
    *("metadata/00000-x.metadata.json", "statestore.json"),
]


@pytest.mark.parametrize("log", LOGS)
def test_files_of_a_table_with_a_log_are_refused(log: str, tmp_path: Path) -> None:
    """The log says which of them are current."""
    table = tmp_path / "all" / "table"
    file = write(table / "day=1" / "1.parquet")
    (table / log).parent.mkdir(exist_ok=True)
    (table / log).touch()
    for place in (str(table.parent), str(table / "day=1"), file):
        with pytest.raises(InvalidArgumentError, match=log.partition("/")[0]):
            open_table(place)
    with pytest.raises(InvalidArgumentError, match=log.partition("/")[0]):
        open_table(str(table), file_format="parquet")


class CallersFile(io.FileIO):
    """Records the threads that read it."""

    threads: ClassVar[set[int]] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)

    def readinto(self, buffer: Any) -> int:
        self.threads.add(threading.get_ident())
        return super().readinto(buffer)


@pytest.mark.parametrize("form", ["parquet", "delta", "csv"])
def test_only_the_callers_thread_reads_a_table(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow that uses a file of Python aborts the process if Python ends meanwhile."""
    rows = pa.table({"k": [f"{number:0100}" for number in range(50_000)]})
    place = tmp_path / f"t.{form}"
    if form == "delta":
        write_deltalake(place, rows)
    elif form == "csv":
        csv.write_csv(rows, place)
    else:
        pq.write_table(rows, place, row_group_size=10_000)
    monkeypatch.setattr(
        LocalStorage, "open_read", lambda storage, name: CallersFile(f"{storage.url}/{name}")
    )
    monkeypatch.setattr(CallersFile, "threads", set())
    assert read(open_table(str(place))) == rows
    assert CallersFile.threads == {threading.get_ident()}
