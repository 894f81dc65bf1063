"""Find damaged state files that Spark itself would read without an error.

A file of the HDFS-backed store (``<version>.delta``, ``<version>.snapshot``) or a changelog of
RocksDB is one compressed stream. Spark stops reading it at its last row, which is a length of -1.
It does not notice bytes that follow, such as the zeros that a crashed file system leaves. It does
not name the file if the last row is missing. So the frames of each stream are read here up to the
end, and Spark decompresses them. Of the codecs, only lz4 has checksums of the content. With another
one, changed bytes inside of a frame are found by Hadoop's checksums, which Spark does not compare.

A snapshot of RocksDB is a zip archive that names data files, ``SSTs/*.sst``. If a block of one of
these does not match its checksum, RocksDB ends an iteration early. Spark does not check the reason,
and returns only the rows before the block. So all checksums are verified first: by RocksDB on the
driver if the files are local, and otherwise by Spark's tasks, which read each file once.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

from pyspark.sql import SparkSession

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.format.documents import convert_value
from statestore.interop.flink.read.rocksdb import check_blocks
from statestore.interop.spark.location import CheckpointLocation, differing_checksums, state_folder
from statestore.interop.spark.operator_reader import Operator
from statestore.interop.spark.query_settings import CODEC
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause, is_damage
from statestore.storage import Storage

_CODECS = {"lz4": "LZ4", "zstd": "ZStd", "snappy": "Snappy", "lzf": "LZF"}
_KNOWN = {*_CODECS, *(f"org.apache.spark.io.{name}CompressionCodec" for name in _CODECS.values())}
# In the second format of checkpoints, an id follows the version.
_FILE = re.compile(r"(\d+)(?:_[^.]+)?\.(delta|snapshot|changelog|zip)")
_AT_ONCE = 16

_LZ4, _ZSTD, _SNAPPY, _LZF = b"LZ4Block", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY\0", b"ZV"
_LZ4_END_BYTES, _LZ4_TOKEN = 21, 8
_ZIP_END, _ZIP_END_BYTES = b"PK\5\6", 22


# ValueError includes msgspec's ValidationError and text that is not JSON.
_UNREADABLE = (BadZipFile, KeyError, ValueError, RecursionError, zlib.error, NotImplementedError)


class _Damage(Exception):
    """The deviations of a file from its format."""


@dataclass(frozen=True)
class _DataFile:
    dfsSstFileName: str
    sizeBytes: int


@dataclass(frozen=True)
class _Snapshot:
    sstFiles: tuple[_DataFile, ...]


def refuse_damaged_states(
    spark: SparkSession, location: CheckpointLocation, operators: Iterable[Operator], batch: int
) -> None:
    """Check the state files that Spark reads for a micro-batch.

    Args:
        spark: a session of Spark Classic, with RocksDB.
        location: the query's checkpoint location.
        operators: the operators whose state will be read.
        batch: a committed micro-batch.

    Raises:
        DamagedFileError: for the first file that is cut off, that continues after its end, or that
            does not match its checksums.
    """
    if location.plan(batch).settings[CODEC] not in _KNOWN:
        return  # a codec of the user's own
    names = list(_list_state_files(location.storage.list("state"), operators, batch + 1))
    storage, data_files = location.storage, dict[str, int]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        checks = [pool.submit(_check_file, storage, name) for name in names]
        for name, check in zip(names, checks, strict=True):
            with _name_file(location, name, batch):
                data_files |= check.result()
        if storage.native_path("state") is None:
            for name, damage in _check_in_tasks(spark, storage, data_files):
                if damage is not None:
                    del data_files[name]
                with _name_file(location, name, batch):
                    if damage:
                        raise _Damage(damage)
        rest = [
            pool.submit(_check_data_file, spark, storage, name, size)
            for name, size in data_files.items()
        ]
        for name, remaining in zip(data_files, rest, strict=True):
            with _name_file(location, name, batch):
                remaining.result()


@contextmanager
def _name_file(location: CheckpointLocation, name: str, batch: int) -> Iterator[None]:
    """Raise damage within a block as a DamagedFileError that names the file.

    A file that a running query has removed meanwhile is not damaged. Spark reports it if it is
    needed.
    """
    try:
        with suppress(FileNotFoundError):
            yield
    except _Damage as damage:
        raise DamagedFileError(
            f"{location.url}/{name}, which has state of micro-batch {batch}, is damaged: {damage}. "
            "Replace it with an intact copy, or choose an older micro-batch"
        ) from damage


def _list_state_files(
    names: Iterable[str], operators: Iterable[Operator], version: int
) -> Iterator[str]:
    """Yield the files from which Spark builds each state partition at a version.

    These are the newest snapshot up to the version, and all later changes up to the version.
    """
    by_folder: dict[str, dict[str, int]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if (match := _FILE.fullmatch(file)) and int(match[1]) <= version:
            by_folder.setdefault(folder, {})[name] = int(match[1])
    for operator in operators:
        for store in operator.stores:
            before, after = state_folder(operator.number, store.name).split("{}")
            # Spark reads all folders, also after its ``repartition``, which leaves the number of
            # partitions in the operator's description as it was.
            pattern = re.compile(rf"{re.escape(before)}\d+{re.escape(after)}")
            for versions in (by_folder[name] for name in by_folder if pattern.fullmatch(name)):
                whole = {name for name in versions if name.endswith((".snapshot", ".zip"))}
                base = max((versions[name] for name in whole), default=0)
                for name, number in versions.items():
                    if number > base or (number == base and name in whole):
                        yield name


def _check_file(storage: Storage, name: str) -> dict[str, int]:
    """Check a file; return the names and lengths of its data files."""
    if (sums_name := differing_checksums(storage, name)) is not None:
        raise _Damage(f"it differs from its checksum in {sums_name}")
    if name.endswith(".zip"):
        return _check_snapshot(storage, name)
    _check_stream(storage, name)
    return {}


def _check_snapshot(storage: Storage, name: str) -> dict[str, int]:
    """Check a snapshot of RocksDB; return the names and lengths of its data files."""
    end = _read_tail(storage, name, _ZIP_END_BYTES)
    if not end.startswith(_ZIP_END) or any(end[-2:]):
        raise _Damage("it does not end like a zip archive")
    try:
        with ZipFile(io.BytesIO(storage.read(name))) as archive:
            _version, _, text = archive.read("metadata").partition(b"\n")
        snapshot = convert_value(json.loads(text), _Snapshot)
    except _UNREADABLE as error:
        raise _Damage(f"it has no list of data files ({error})") from error
    folder = f"{name.rpartition('/')[0]}/SSTs"
    return {f"{folder}/{file.dfsSstFileName}": file.sizeBytes for file in snapshot.sstFiles}


@dataclass(frozen=True)
class _Source:
    """A data file, as the reader of RocksDB's files takes it."""

    storage: Storage
    file: str
    size: int
    name: str = "it"  # in messages

    def read(self, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop <= self.size:
            raise _Damage(
                f"its index references bytes {start:,} to {stop:,}, but it has {self.size:,}"
            )
        return self.storage.read_range(self.file, start, stop)


def _check_in_tasks(
    spark: SparkSession, storage: Storage, files: Mapping[str, int]
) -> list[tuple[str, str | None]]:
    """Check data files in a Spark job, with a task for each file.

    Returns:
        For each file its damage, an empty text for an intact or removed file, and None for a format
        that only RocksDB can check.
    """
    if not files:
        return []
    slices = spark.sparkContext.parallelize([*files.items()], len(files))
    return slices.map(partial(_find_damage, storage)).collect()


def _find_damage(storage: Storage, file: tuple[str, int]) -> tuple[str, str | None]:
    name, size = file
    try:
        _check_size(storage, name, size)
        check_blocks(_Source(storage, name, size))
    except FileNotFoundError:
        return name, ""
    except (_Damage, DamagedFileError) as damage:
        return name, str(damage)
    except (FormatVersionError, UnsupportedTypeError):
        return name, None
    return name, ""


def _check_size(storage: Storage, name: str, size: int) -> None:
    if (actual := storage.size(name)) != size:
        raise _Damage(f"it has {actual:,} bytes instead of {size:,}")


def _check_data_file(spark: SparkSession, storage: Storage, name: str, size: int) -> None:
    """Let RocksDB verify the checksum of each block of a data file."""
    _check_size(storage, name, size)
    jvm: Any = spark._jvm
    with TemporaryDirectory(prefix="statestore-") as folder:
        path = storage.native_path(name)
        if path is None:
            path = str(Path(folder) / "file.sst")
            with storage.open_read(name) as remote, Path(path).open("wb") as local:
                shutil.copyfileobj(remote, local)
        jvm.org.rocksdb.RocksDB.loadLibrary()
        reader = jvm.org.rocksdb.SstFileReader(jvm.org.rocksdb.Options())
        try:
            reader.open(path)
            reader.verifyChecksum()
        except SPARK_ERRORS as error:
            if not is_damage(error):
                raise
            raise _Damage(describe_cause(error)) from error
        finally:
            reader.close()


def _check_stream(storage: Storage, name: str) -> None:
    head = storage.read_range(name, 0, len(_LZ4))
    if head == _LZ4:
        end = _read_tail(storage, name, _LZ4_END_BYTES)
        if not end.startswith(_LZ4) or any(end[_LZ4_TOKEN + 1 :]):
            raise _Damage("it does not end like a stream of lz4")
        return
    size = storage.size(name)
    walks = {_ZSTD: _walk_zstd, _SNAPPY: _walk_snappy, _LZF: _walk_lzf}
    walk = next((walks[magic] for magic in walks if head.startswith(magic)), None)
    if walk is None:
        raise _Damage("it does not begin like a compressed stream" if head else "it is empty")
    with storage.open_read(name) as file:
        walk(file)
        stop = file.tell()
    if stop != size:
        raise _Damage(f"{size - stop:,} bytes follow its end" if stop < size else "it is cut off")


def _read_tail(storage: Storage, name: str, count: int) -> bytes:
    size = storage.size(name)
    if size < count:
        raise _Damage("it is cut off" if size else "it is empty")
    return storage.read_range(name, size - count, size)


def _walk_zstd(file: BinaryIO) -> None:
    """Skip frames: a header, blocks with their lengths, and a checksum if the header says so."""
    while (magic := file.read(4)) == _ZSTD:
        flags = _read_exactly(file, 1)[0]
        is_single_segment = flags >> 5 & 1
        dictionary_bytes = (0, 1, 2, 4)[flags & 3]
        size_bytes = (is_single_segment, 2, 4, 8)[flags >> 6]
        file.seek((not is_single_segment) + dictionary_bytes + size_bytes, 1)
        is_last = False
        while not is_last:
            block = int.from_bytes(_read_exactly(file, 3), "little")
            is_last, is_repeated = bool(block & 1), (block >> 1 & 3) == 1
            file.seek(1 if is_repeated else block >> 3, 1)
        file.seek(4 * (flags >> 2 & 1), 1)
    file.seek(-len(magic), 1)


def _walk_snappy(file: BinaryIO) -> None:
    """Skip a header with two versions, and blocks with their lengths."""
    file.seek(len(_SNAPPY) + 8)
    while length := int.from_bytes(data := file.read(4), "big"):
        file.seek(length, 1)
    file.seek(-len(data), 1)


def _walk_lzf(file: BinaryIO) -> None:
    """Skip blocks: a type, and their length; a compressed block also has its original length."""
    while (magic := file.read(2)) == _LZF:
        block_type, high, low = _read_exactly(file, 3)
        file.seek((high << 8 | low) + 2 * block_type, 1)
    file.seek(-len(magic), 1)


def _read_exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise _Damage("it is cut off")
    return data
