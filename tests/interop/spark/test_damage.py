"""Every damaged file of a checkpoint location is refused, or does not change what is imported."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import DamagedFileError, StateStoreError, StorageError
from statestore.interop.spark import export_checkpoint, import_checkpoint, show_location
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.parts import PartForm, list_parts, read_stored_rows
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.state_damage import refuse_damaged_states
from statestore.interop.spark.state_reader import prepared_session
from statestore.spark.error_cause import SPARK_ERRORS
from statestore.storage import LocalStorage
from tests.interop.spark.queries import QUERIES, events, run

pytestmark = pytest.mark.slow

CODEC = "spark.sql.streaming.stateStore.compression.codec"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
# The provider and the settings of a query; without settings, of an export of the first one.
LOCATIONS: dict[str, tuple[str, dict[str, str] | None]] = {
    "lz4": ("hdfs", {}),
    "zstd": ("hdfs", {CODEC: "zstd"}),
    "snappy": ("hdfs", {CODEC: "snappy"}),
    "lzf": ("hdfs", {CODEC: "lzf"}),
    "rocksdb": ("rocksdb", {}),
    "changelog": ("rocksdb", {CHANGELOG: "true"}),
    "exported": ("hdfs", None),
    "exported-rocksdb": ("rocksdb", None),
}
# A state file of each kind, as (location, pattern). The last version is the one that is read.
STATE_FILES = [
    ("lz4", "state/0/0/2.delta"),
    ("zstd", "state/0/0/2.delta"),
    ("snappy", "state/0/0/2.delta"),
    ("lzf", "state/0/0/2.delta"),
    ("rocksdb", "state/0/0/2.zip"),
    ("rocksdb", "state/0/0/SSTs/*.sst"),
    ("changelog", "state/0/0/2.changelog"),
    ("exported", "state/0/0/*.snapshot"),
    ("exported-rocksdb", "state/0/0/*.changelog"),
]
Damage = Callable[[bytes], bytes]
# Damages that a frame, an end mark or a length shows, whatever the content is.
VISIBLE: dict[str, Damage] = {
    "empty": lambda data: b"",
    "cut-by-1": lambda data: data[:-1],
    "cut-in-half": lambda data: data[: len(data) // 2],
    "a-zero-more": lambda data: data + bytes(1),
    "zeros-more": lambda data: data + bytes(4096),
    "garbage-more": lambda data: data + random.Random(1).randbytes(50),
    "zeros": lambda data: bytes(len(data)),
}
DAMAGES: dict[str, Damage] = {
    **VISIBLE,
    "twice": lambda data: data + data,
    "zeros-at-head": lambda data: bytes(8) + data[8:],
    "zeros-at-end": lambda data: data[:-4] + bytes(len(data[-4:])),
    "zeros-inside": lambda data: (
        data[: len(data) // 2] + bytes(6) + data[min(len(data) // 2 + 6, len(data)) :]
    ),
    "zeros-in-tail": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "cut-by-a-line": lambda data: data[: max(data.rstrip(b"\n").rfind(b"\n"), 0)],
}


class Locations:
    """Checkpoint locations of one query after two micro-batches, each written at its first use."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        events(folder / "events", 0, 2)

    def __getitem__(self, name: str) -> Path:
        location = self._folder / name
        if not location.exists():
            provider, conf = LOCATIONS[name]
            if conf is None:
                self._export(location, provider)
            else:
                self._run(location, provider, conf)
        return location

    def _run(self, location: Path, provider: str, conf: dict[str, str]) -> None:
        run(
            self._spark,
            QUERIES["agg"],
            source=self._folder / "events",
            location=str(location),
            provider=provider,
            partitions=2,
            conf=conf,
        )

    def _export(self, location: Path, provider: str) -> None:
        store = self._folder / "store"
        if not store.exists():
            take(self._spark, self["lz4"], store)
        export_checkpoint(
            StateStore.open(str(store), spark=self._spark, layout="auto"),
            str(location),
            partitions=2,
            target=SparkTarget(provider=provider),  # type: ignore[arg-type]
        )


@pytest.fixture(scope="module")
def locations(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Locations:
    return Locations(spark, tmp_path_factory.mktemp("locations"))


def take(spark: SparkSession, location: Path, store: Path) -> tuple[object, ...]:
    """Import the newest micro-batch; return everything that a later export depends on."""
    opened = StateStore.open(str(store), spark=spark, layout="auto")
    record = import_checkpoint(spark, str(location), opened).record
    return record.ends, [part.contents for part in record.stores], record.logs


def damage(location: Path, file: str, change: Damage, *, is_checksummed: bool) -> None:
    """Change a file; keep or remove the file with Hadoop's checksums."""
    path = location / file
    path.write_bytes(change(path.read_bytes()))
    if not is_checksummed:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "pattern", "how"),
    [
        # Each run has every damage of one file, and one damage of a file of each provider.
        pytest.param(
            *(name, pattern, how),
            id=f"{name}-{pattern}-{how}",
            marks=[]
            if name == "lz4" or (how == "cut-in-half" and name in ("zstd", "rocksdb", "exported"))
            else pytest.mark.long,
        )
        for (name, pattern), how in itertools.product(STATE_FILES, VISIBLE)
    ],
)
def test_a_damaged_state_file_is_refused_by_name(
    spark: SparkSession,
    locations: Locations,
    tmp_path: Path,
    name: str,
    pattern: str,
    how: str,
) -> None:
    location = tmp_path / "location"
    shutil.copytree(locations[name], location)
    [file, *_] = sorted(path.relative_to(location) for path in location.glob(pattern))
    damage(location, str(file), VISIBLE[how], is_checksummed=False)
    with pytest.raises(DamagedFileError, match=f"{file}, which has state of .*, is damaged: "):
        take(spark, location, tmp_path / "store")
    with pytest.raises(DamagedFileError, match=f"{file}, which has state of .*, is damaged: "):
        show_location(spark, str(location))
    assert not [*tmp_path.glob("store/checkpoints/*.json")]


def test_another_failure_of_spark_is_not_called_damage(
    spark: SparkSession, locations: Locations
) -> None:
    """Spark refuses the option, as an older Spark refuses the options of a newer one."""
    location = CheckpointLocation(LocalStorage(str(locations["lz4"])))
    batch = location.batch()
    operators = location.operators(batch)
    part = replace(list_parts(operators[0])[0], form=PartForm.VALUE, variable="unknown")
    with (
        pytest.raises(StorageError, match=r"reported no damaged file: .*stateVarName") as caught,
        prepared_session(spark, location, batch, operators) as url,
    ):
        read_stored_rows(spark, url, batch, part)
    assert isinstance(caught.value.__cause__, SPARK_ERRORS)


def test_rows_before_a_damaged_block_of_rocksdb_are_not_imported(
    spark: SparkSession, locations: Locations, tmp_path: Path
) -> None:
    """Spark reads such a file without an error, as if the rows from the block on did not exist."""
    location = tmp_path / "location"
    shutil.copytree(locations["rocksdb"], location)
    [file, *_] = sorted(path.relative_to(location) for path in location.glob(STATE_FILES[5][1]))
    damage(location, str(file), DAMAGES["zeros-at-head"], is_checksummed=False)
    with pytest.raises(DamagedFileError, match=f"{file}.*is damaged: .*checksum mismatch"):
        take(spark, location, tmp_path / "store")


class Remote(LocalStorage):
    """A storage whose files have no local path; it counts calls by process, file and kind."""

    def native_path(self, name: str) -> str | None:
        """Return no path for a file."""
        return None if name else super().native_path(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file, and note the request."""
        data = super().read_range(name, start, stop)
        with Path(f"{self.url}.calls").open("a") as calls:
            calls.write(f"{os.getpid()} {name} {len(data)}\n")
        return data

    def open_read(self, name: str) -> BinaryIO:
        """Refuse to read a data file as a whole."""
        assert not name.endswith(".sst")
        return super().open_read(name)


@pytest.mark.long
def test_a_remote_data_file_is_read_once_and_by_a_task(
    spark: SparkSession, locations: Locations, tmp_path: Path
) -> None:
    """The driver downloads none, and a damaged one is found as if it were local."""
    shutil.copytree(locations["rocksdb"], tmp_path / "location")
    location = CheckpointLocation(Remote(str(tmp_path / "location")))
    batch = location.batch()
    operators = location.operators(batch)
    refuse_damaged_states(spark, location, operators, batch)
    sizes = {
        path: (tmp_path / "location" / path).stat().st_size
        for path in location.storage.list("state")
        if path.endswith(".sst")
    }
    read, requests = Counter[str](), Counter[str]()
    for line in (tmp_path / "location.calls").read_text().splitlines():
        process, name, size = line.split()
        if name in sizes:
            assert int(process) != os.getpid()
            requests[name] += 1
            read[name] += int(size)
    assert sizes.keys() == read.keys()
    assert [name for name in sizes if read[name] > sizes[name] or requests[name] > 5] == []

    [file, *_] = sizes
    damage(tmp_path / "location", file, DAMAGES["zeros-at-head"], is_checksummed=False)
    with pytest.raises(DamagedFileError, match=f"{file}, which has .*: the checksum of a block is"):
        refuse_damaged_states(spark, location, operators, batch)


def test_a_partition_above_the_described_number_is_checked(
    spark: SparkSession, locations: Locations, tmp_path: Path
) -> None:
    """Spark's own ``repartition`` adds folders and keeps the number in the description."""
    location = tmp_path / "location"
    shutil.copytree(locations["lz4"], location)
    shutil.copytree(location / "state/0/1", location / "state/0/2")
    damage(location, "state/0/2/2.delta", DAMAGES["cut-by-1"], is_checksummed=False)
    with pytest.raises(DamagedFileError, match=r"state/0/2/2\.delta, which has state of .*damaged"):
        take(spark, location, tmp_path / "store")


def test_a_log_that_differs_from_its_checksum_is_refused(
    spark: SparkSession, locations: Locations, tmp_path: Path
) -> None:
    location = tmp_path / "location"
    shutil.copytree(locations["lz4"], location)
    change: Damage = lambda data: data.replace(b'"timestamp":1', b'"timestamp":2')  # noqa: E731
    damage(location, "sources/0/0", change, is_checksummed=True)
    with pytest.raises(
        DamagedFileError, match=r"sources/0/0 differs from its checksum in \.0\.crc"
    ):
        take(spark, location, tmp_path / "store")
    (location / "sources/0/.0.crc").unlink()
    assert take(spark, location, tmp_path / "store")


@pytest.mark.long_cases("exported-rocksdb")
@pytest.mark.parametrize("name", ["exported", "exported-rocksdb"])
def test_exported_state_has_a_checksum(
    spark: SparkSession, locations: Locations, tmp_path: Path, name: str
) -> None:
    location = tmp_path / "location"
    shutil.copytree(locations[name], location)
    [file, *_] = [*location.glob("state/0/0/*.snapshot"), *location.glob("state/0/0/*.changelog")]
    damage(
        location,
        str(file.relative_to(location)),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        is_checksummed=False,
    )
    with pytest.raises(DamagedFileError, match=r"checksum|missing or damaged"):
        take(spark, location, tmp_path / "store")


@pytest.mark.long_cases("snappy", "lzf")
@pytest.mark.parametrize("codec", ["zstd", "snappy", "lzf"])
def test_changed_bytes_inside_of_a_frame_are_found_by_hadoops_checksum(
    spark: SparkSession, locations: Locations, tmp_path: Path, codec: str
) -> None:
    location = tmp_path / "location"
    shutil.copytree(locations[codec], location)
    damage(location, "state/0/0/2.delta", DAMAGES["zeros-inside"], is_checksummed=True)
    with pytest.raises(
        DamagedFileError, match=r"2\.delta, .*differs from its checksum in \.2\.delta\.crc"
    ):
        take(spark, location, tmp_path / "store")


def cases(names: tuple[str, ...], share: int) -> list[tuple[str, str, bool]]:
    """Return a share of all combinations, with each location and damage in it.

    Streams of zstd, snappy and lzf have no checksums of their own. Without Hadoop's file, nothing
    tells changed bytes of their content from other content.
    """
    every = itertools.product(names, DAMAGES, (False, True))
    unknowable = {(codec, "zeros-inside", False) for codec in ("zstd", "snappy", "lzf")}
    return [case for case in [*every][::share] if case not in unknowable]


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "share", "count"),
    [
        (("lz4", "rocksdb"), 3, 2),
        pytest.param(tuple(LOCATIONS), 1, 5, marks=[pytest.mark.long, pytest.mark.timeout(0)]),
    ],
    ids=["sample", "all"],
)
def test_a_damaged_file_is_refused_or_changes_nothing(
    spark: SparkSession,
    locations: Locations,
    tmp_path: Path,
    names: tuple[str, ...],
    share: int,
    count: int,
) -> None:
    draw = random.Random(share)
    stores = itertools.count()
    expected = {name: take(spark, locations[name], tmp_path / name / "store") for name in names}
    wrong, refused = [], 0
    for name, how, is_checksummed in cases(names, share):
        files = [
            str(path.relative_to(locations[name]))
            for path in sorted(locations[name].rglob("*"))
            if path.is_file() and path.name[0] != "."
        ]
        for file in draw.sample(files, count):
            location = tmp_path / "location"
            shutil.copytree(locations[name], location)
            damage(location, file, DAMAGES[how], is_checksummed=is_checksummed)
            try:
                found = take(spark, location, tmp_path / str(next(stores)))
            except StateStoreError:
                refused += 1
            else:
                if found != expected[name]:
                    wrong.append((name, file, how, is_checksummed))
            shutil.rmtree(location)
    assert wrong == []
    assert refused > 10
