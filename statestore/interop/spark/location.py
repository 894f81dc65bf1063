"""Read the files that a query wrote to its checkpoint location, except the rows of its state.

::

    metadata                          the query's id
    offsets/<batch>                   the plan of a micro-batch: settings, and ends of sources, by
                                      name in version 2
    commits/<batch>                   the micro-batch is finished
    sources/<source>/…                the files that a source has read
    state/<operator>/_metadata/…      the operator, its stores, and their number of partitions
    state/<operator>/0/[<store>/]_metadata/schema      the columns of a store
    state/<operator>/_stateSchema/<store>/…            the columns of a store with column families

All of these are JSON after a line with a version. This module only reads them, which does not
disturb a running query. It also finds damaged ones, which an export would write again unchanged.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    MissingFileError,
)
from statestore.format.documents import convert_value
from statestore.interop.spark.operator_reader import (
    CONTINUE_A_COPY,
    SHUFFLE_PARTITIONS,
    Operator,
    path_part,
    read_operator,
    unsupported_version,
)
from statestore.interop.spark.query_settings import settings_of
from statestore.storage import Storage
from statestore.streaming.planned import split_sources

_SCHEMA_VERSION = b"\0\2v2"

_MAGIC, _HEADER_BYTES, _SUM_BYTES = b"crc\0", 8, 4


def refuse_damaged_log(storage: Storage, name: str) -> None:
    """Compare a file with the checksums that Hadoop keeps next to it.

    Raises:
        DamagedFileError: if the file differs from its checksums.
    """
    if (sums_name := differing_checksums(storage, name)) is not None:
        raise DamagedFileError(
            f"{storage.url}/{name} differs from its checksum in {sums_name}. Replace it with "
            "an intact copy; if it was changed on purpose, delete the checksum"
        )


def refuse_damaged_source_log(storage: Storage, name: str, content: bytes) -> None:
    """Check a file of a source for lines that are cut off, missing or not JSON.

    Spark's own sources write the line ``v1``, in older formats after a zero byte, and then lines of
    JSON. Files in another format are not checked.

    Raises:
        DamagedFileError: if the file is empty, or has other lines.
    """
    lines = content.removeprefix(b"\0").splitlines()
    if content.strip(b"\0") and lines[0] != b"v1" and not lines[0].startswith(b"\0"):
        return
    try:
        if lines[:1] != [b"v1"] or len(lines) == 1:
            raise ValueError("a line is missing")
        for line in lines[1:]:
            json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{storage.url}/{name} is damaged, so the query cannot continue from this "
            f"micro-batch: {error}. Replace it with an intact copy"
        ) from error


def refuse_damaged_schema(storage: Storage, name: str, content: bytes) -> None:
    """Check that the description of a store's columns ends after the columns of the value.

    The file has two texts. Each is a number of pieces, and each piece follows its length. Spark
    does not notice bytes that follow the second one. Other versions of the file are not checked.

    Raises:
        DamagedFileError: if the file is shorter or longer.
    """
    if not content.startswith(_SCHEMA_VERSION):
        return
    position = len(_SCHEMA_VERSION)
    for _text in ("key", "value"):
        pieces = int.from_bytes(content[position : position + 4], "big")
        position += 4
        while pieces and position < len(content):
            position += 2 + int.from_bytes(content[position : position + 2], "big")
            pieces -= 1
    if position != len(content):
        raise DamagedFileError(
            f"{storage.url}/{name} is damaged: it has {len(content):,} bytes instead of "
            f"{position:,}. Replace it with an intact copy"
        )


def differing_checksums(storage: Storage, name: str) -> str | None:
    """Compare a file with its checksums in ``.<name>.crc``; the file is read in chunks.

    Hadoop's ``ChecksumFileSystem`` keeps the checksums next to a file of a local file system. They
    begin with the number of bytes of a chunk, and then the CRC-32 of each chunk follows.

    Args:
        storage: the storage of the file. Only local ones have checksums.
        name: the name of the file.

    Returns:
        The name of the file with the checksums, if the file differs from them; None if it equals
        them, or has none.

    Raises:
        FileNotFoundError: if the file does not exist, but its checksums do.
    """
    native = storage.native_path(name)
    if native is None:
        return None
    path = Path(native)
    sums_path = path.with_name(f".{path.name}.crc")
    sums = sums_path.read_bytes() if sums_path.is_file() else b""
    if len(sums) < _HEADER_BYTES or not sums.startswith(_MAGIC):
        return None  # Hadoop ignores a file without this header, too
    chunk_bytes = max(int.from_bytes(sums[len(_MAGIC) : _HEADER_BYTES], "big"), 1)
    with path.open("rb") as file:
        actual = b"".join(
            zlib.crc32(chunk).to_bytes(_SUM_BYTES, "big")
            for chunk in iter(lambda: file.read(chunk_bytes), b"")
        )
    return None if actual == sums[_HEADER_BYTES:] else sums_path.name


FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

UNFINISHED = b"This is not a checkpoint of a query yet"
"""The beginning of the newest file in ``offsets`` until an export is complete. Spark reads this
file first, and refuses to start with it.
"""

_NUMBER = re.compile(r"\d{1,18}")
NO_END = "-"
"""The end of a source that has had no data yet."""
T = TypeVar("T")


class _Query(Struct, frozen=True):
    id: str


class _Offsets(Struct, frozen=True):
    batchWatermarkMs: int = 0
    batchTimestampMs: int = 0
    conf: dict[str, str] = {}


class _Commit(Struct, frozen=True):
    nextBatchWatermarkMs: int = 0


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a micro-batch: its settings, and the end of each source's data.

    ``settings`` also has the settings that the plan lacks, with Spark's oldest values. ``sources``
    are the names of the sources in the order of ``ends``, which are numbers by default. They are
    None in version 1 of the offset log, which identifies sources by their order.
    """

    number: int
    watermark_ms: int
    planned_at_ms: int
    settings: Mapping[str, str]
    ends: tuple[str, ...]
    sources: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the query gave to its sources, in the order of ``ends``; empty if none."""
        sources = self.sources or ()
        return () if all(map(str.isdecimal, sources)) else sources


@dataclass(frozen=True)
class OffsetLogEntry:
    """An entry of the offset log: the settings of a micro-batch as JSON, and a line per source.

    The line is the end of the source's data. In version 2, the source's name and a colon precede
    it. Version 1 identifies sources by their numbers.
    """

    version: str
    settings: str
    lines: tuple[str, ...]

    @classmethod
    def parse(cls, content: bytes) -> OffsetLogEntry:
        """Return the entry in a file, which :meth:`CheckpointLocation.plan` has checked."""
        version, settings, *lines = content.decode().split("\n")
        return cls(version, settings, tuple(lines))

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The name or number of each source, and its end."""
        if self.version == "v2":
            return tuple(split_sources(self.lines))
        return tuple((str(number), end) for number, end in enumerate(self.lines))

    @property
    def conf(self) -> dict[str, str]:
        """The settings of the session that Spark keeps for the query."""
        conf: dict[str, str] = json.loads(self.settings)["conf"]
        return conf

    def with_conf(self, conf: Mapping[str, str]) -> OffsetLogEntry:
        """Return the entry with other settings of the session."""
        settings = json.loads(self.settings) | {"conf": conf}
        return replace(self, settings=json.dumps(settings, separators=(",", ":")))

    def with_sources(self, sources: Iterable[tuple[str, str]]) -> OffsetLogEntry:
        """Return the entry with other sources, in this order; a repeated name is written once."""
        if self.version == "v2":
            return replace(
                self, lines=tuple(f"{name}:{end}" for name, end in dict(sources).items())
            )
        return replace(self, lines=tuple(end for _, end in sources))

    def encode(self) -> bytes:
        """Return the content of the file."""
        return "\n".join([self.version, self.settings, *self.lines]).encode()


@dataclass(frozen=True)
class BatchCommit:
    """A committed micro-batch; ``version`` is the version of the checkpoint format, 1 or 2."""

    number: int
    version: int
    next_watermark_ms: int


@dataclass(frozen=True)
class CheckpointLocation:
    """A query's checkpoint location; each part is read when it is used first.

    ``operator_names`` are the names of operators by number, for a location that lacks them.
    """

    storage: Storage
    operator_names: Mapping[int, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The path or URL, without credentials."""
        return self.storage.url

    @property
    def spark_url(self) -> str:
        """The URL of the location for Spark."""
        return self.storage.spark_url("").rstrip("/")

    @cached_property
    def query_id(self) -> str:
        """The query's id; InvalidArgumentError if this is not a query's checkpoint location."""
        try:
            content = self.storage.read("metadata")
        except FileNotFoundError:
            raise InvalidArgumentError(
                f"{self.url} is not a checkpoint location of a query: it has no file 'metadata'. "
                "Pass the folder that the query was started with as checkpointLocation"
            ) from None
        return self.decode("metadata", content, _Query).id

    @cached_property
    def planned(self) -> tuple[int, ...]:
        """The numbers of the planned micro-batches that are still kept, ascending."""
        return self._list_numbers("offsets")

    @cached_property
    def committed(self) -> tuple[int, ...]:
        """The numbers of the committed micro-batches that are still kept, ascending."""
        return self._list_numbers("commits")

    @property
    def uncommitted(self) -> int | None:
        """The number of a planned micro-batch that is not committed and will run again."""
        last = max(self.planned, default=None)
        return last if last is not None and last > max(self.committed, default=-1) else None

    @property
    def is_unfinished(self) -> bool:
        """Whether an export to this location is running or did not finish."""
        last = max(self.planned, default=None)
        return last is not None and self.storage.read(f"offsets/{last}").startswith(UNFINISHED)

    def batch(self, number: int | None = None) -> int:
        """Return the number of a committed micro-batch, by default the newest.

        Raises:
            InvalidArgumentError: if it is not committed or no longer kept, or if the location
                belongs to an export that did not finish.
        """
        if self.is_unfinished:
            raise InvalidArgumentError(
                f"{self.url} is not a usable checkpoint location: an export to it is still "
                "running or did not finish"
            )
        _ = self.query_id
        if not self.committed and self._is_without_commit_log():
            raise FormatVersionError(
                f"{self.url} has plans of micro-batches, but no commits: it was written by Spark "
                f"2.1 or before. {CONTINUE_A_COPY}"
            )
        if not self.committed:
            raise InvalidArgumentError(
                f"the query of {self.url} has not completed a micro-batch yet, so there is no state"
            )
        if number is None:
            return self.committed[-1]
        if number not in self.committed:
            raise InvalidArgumentError(
                f"{self.url} has no completed micro-batch {number}; available are "
                f"{self.committed[0]} to {self.committed[-1]}"
            )
        return number

    def _is_without_commit_log(self) -> bool:
        """Return whether Spark 2.1 or before planned more than one micro-batch.

        It had no commit log, and its plans have no settings.
        """
        if len(self.planned) < 2:
            return False
        plan = self.plan(self.planned[-1])
        return plan.sources is None and SHUFFLE_PARTITIONS not in plan.settings

    def plan(self, number: int) -> BatchPlan:
        """Return the plan of a micro-batch.

        Raises:
            MissingFileError or DamagedFileError: if its file is missing or truncated.
            FormatVersionError: if another version of Spark wrote it.
        """
        name = f"offsets/{number}"
        version, *lines = self._read_lines(name)
        if version not in ("v1", "v2"):
            raise FormatVersionError(unsupported_version(self.url, name, version))
        if not lines:
            raise DamagedFileError(
                f"{self.url}/{name} is truncated: the settings after its first line are missing"
            )
        settings = self.decode(name, lines[0].encode(), _Offsets)
        if not lines[1:]:
            raise DamagedFileError(
                f"{self.url}/{name} is truncated: it has no end position of a source"
            )
        try:
            named = OffsetLogEntry(version, lines[0], tuple(lines[1:])).sources
        except ValueError as error:
            raise DamagedFileError(
                f"{self.url}/{name} is not in Spark's format: {error}"
            ) from error
        ends = tuple(end for _, end in named)
        for end in ends:
            if end != NO_END:
                self.decode(name, end.encode(), object)
        return BatchPlan(
            number,
            settings.batchWatermarkMs,
            settings.batchTimestampMs,
            settings_of(settings.conf),
            ends,
            None if version == "v1" else tuple(source for source, _ in named),
        )

    def commit(self, number: int) -> BatchCommit:
        """Return the commit log entry of a micro-batch; raises the errors of :meth:`plan`."""
        name = f"commits/{number}"
        version, *lines = self._read_lines(name)
        if version not in ("v1", "v2"):
            raise FormatVersionError(unsupported_version(self.url, name, version))
        commit = self.decode(name, "\n".join(lines).encode(), _Commit)
        return BatchCommit(number, int(version[1:]), commit.nextBatchWatermarkMs)

    def operators(self, batch: int) -> tuple[Operator, ...]:
        """Return the stateful operators of a micro-batch, ordered by their numbers.

        Raises:
            InvalidArgumentError: if the query has no state. Also if an operator's name is needed,
                or ``operator_names`` has a wrong one.
            UnsupportedTypeError: for unknown stores of Spark 3.
            MissingFileError, DamagedFileError or FormatVersionError: as :meth:`plan`.
        """
        names = self.storage.list("state")
        numbers = _operator_numbers(names)
        if not numbers:
            raise InvalidArgumentError(f"the query of {self.url} has no state")
        for number in self.operator_names:
            if number not in numbers:
                raise InvalidArgumentError(
                    f"{self.url} has no operator {number}; it has {', '.join(map(str, numbers))}"
                )
        return tuple(read_operator(self, number, names, batch) for number in numbers)

    def files(self, batch: int) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of all files that an export needs, except the state's rows.

        These are the query's id, the plans and commits of the micro-batches around this one, the
        source logs up to this micro-batch, and the descriptions of operators and stores. Later
        entries of the source logs are left out, so that an exported query reads these files again.

        Raises:
            MissingFileError, DamagedFileError or FormatVersionError: as :meth:`plan`.
        """
        yield "metadata", self.read_content("metadata")
        last = batch + 1 if batch + 1 in self.planned else batch
        plans = {number: self.plan(number) for number in range(max(batch - 1, 0), last + 1)}
        for number in plans:
            yield f"offsets/{number}", self.read_content(f"offsets/{number}")
        for number in sorted({batch - 1, batch} & {*self.committed}):
            self.commit(number)
            yield f"commits/{number}", self.read_content(f"commits/{number}")
        for name in self._list_source_logs(plans[last]):
            content = self.read_content(name)
            refuse_damaged_source_log(self.storage, name, content)
            yield name, content
        corrections: dict[str, bytes] = {}
        if _operator_numbers(self.storage.list("state")):  # a StatefulQuery keeps its state itself
            for operator in self.operators(batch):
                corrections |= operator.corrections
        yield from corrections.items()
        for name in self.storage.list("state"):
            if _is_description(name, batch) and name not in corrections:
                content = self.read_content(name)
                refuse_damaged_schema(self.storage, name, content)
                yield name, content

    def corrected_plan(self, number: int, partitions: int) -> dict[str, bytes]:
        """Return a plan by its name, with the number of shuffle partitions if it lacks it.

        Spark 4.2 and 4.3 leave the number out of version 2 of the offset log, but their reader of
        state requires it. The result is empty if the plan needs no correction.
        """
        if SHUFFLE_PARTITIONS in self.plan(number).settings:
            return {}
        name = f"offsets/{number}"
        entry = OffsetLogEntry.parse(self.read_content(name))
        return {name: entry.with_conf(entry.conf | {SHUFFLE_PARTITIONS: str(partitions)}).encode()}

    def file_sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file of a folder by its name, without subfolders."""
        paths = {path.removeprefix(f"{folder}/"): path for path in self.storage.list(folder)}
        return {name: self.storage.size(path) for name, path in paths.items() if "/" not in name}

    def _list_source_logs(self, plan: BatchPlan) -> Iterator[str]:
        """Yield the files of source logs; for a file source, only up to its end.

        A file source writes a numbered file whenever it finds new input files. Every tenth file,
        ``<number>.compact``, contains all previous entries. All files after the last one of these
        are needed. A source that the query no longer has keeps all of its files.
        """
        names = self.storage.list("sources")
        sources = plan.sources or tuple(map(str, range(len(plan.ends))))
        ends = dict(zip(sources, map(_parse_log_offset, plan.ends), strict=True))
        greatest = max((number for number in ends.values() if number is not None), default=None)
        folders = {part for name in names if _NUMBER.fullmatch(part := path_part(name, 1))}
        # Without names, a source that is used twice, as in a self-join, has one folder and two
        # ends. Then the ends cannot be matched to folders.
        is_matched = plan.sources is not None or folders == ends.keys()
        for name in names:
            file = _NUMBER.match(path_part(name, 2))
            known = ends.get(path_part(name, 1)) if is_matched else greatest
            if known is None or file is None or int(file.group()) <= known:
                yield name
        if is_matched:
            for source, known in ends.items():
                self._check_source_log(f"sources/{source}", known, names)

    def _check_source_log(self, folder: str, number: int | None, names: tuple[str, ...]) -> None:
        for log_number in range(-1 if number is None else number, -1, -1):
            if f"{folder}/{log_number}.compact" in names:
                return
            if f"{folder}/{log_number}" not in names:
                raise MissingFileError(
                    f"{self.url}/{folder}/{log_number} is missing; it records the files that a "
                    "source has read, so the query cannot continue from this micro-batch without it"
                )

    def _list_numbers(self, folder: str) -> tuple[int, ...]:
        names = (name.rpartition("/")[2] for name in self.storage.list(folder))
        return tuple(sorted(int(name) for name in names if _NUMBER.fullmatch(name)))

    def read_content(self, name: str) -> bytes:
        """Return a file of the location.

        Raises MissingFileError or DamagedFileError if it is missing or truncated.
        """
        try:
            content = self.storage.read(name)
        except FileNotFoundError:
            raise MissingFileError(
                f"{self.url}/{name} does not exist; Spark has removed it, or it was lost"
            ) from None
        refuse_damaged_log(self.storage, name)
        return content

    def _read_lines(self, name: str) -> list[str]:
        return self.split_lines(name, self.read_content(name))

    def split_lines(self, name: str, content: bytes) -> list[str]:
        """Return the lines of a file; DamagedFileError if it has none, or is not text."""
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError:
            lines = []
        if not lines:
            raise DamagedFileError(f"{self.url}/{name} is empty or not in Spark's format")
        return lines

    def decode(self, name: str, content: bytes, document_type: type[T]) -> T:
        """Return a JSON document of a file; DamagedFileError if it does not have this type."""
        try:
            value: Any = json.loads(content)
            json.dumps(value, ensure_ascii=False).encode()  # refuses unpaired surrogates
            return convert_value(value, document_type)
        except RecursionError:
            raise DamagedFileError(
                f"{self.url}/{name} is not in Spark's format: its JSON is nested too deeply"
            ) from None
        except (ValueError, ValidationError) as error:
            raise DamagedFileError(
                f"{self.url}/{name} is not in Spark's format: {error}"
            ) from error


def provider_name(settings: Mapping[str, str]) -> str:
    """Return ``hdfs`` or ``rocksdb``, or the class name of any other provider."""
    name = settings.get(PROVIDER, PROVIDERS["hdfs"])
    return next((short for short, known in PROVIDERS.items() if known == name), name)


def state_folder(operator: int, store: str) -> str:
    """Return the folder of a store, with ``{}`` as a placeholder for the partition number."""
    return f"state/{operator}/{{}}" + ("" if store == "default" else f"/{store}")


def _operator_numbers(names: tuple[str, ...]) -> list[int]:
    """Return the numbers of the operators that have files below ``state``, in order."""
    parts = {path_part(name, 1) for name in names}
    return sorted(int(part) for part in parts if _NUMBER.fullmatch(part))


def _is_description(name: str, batch: int) -> bool:
    """Return whether a file below ``state`` describes an operator or a store."""
    *folders, last = name.split("/")
    if last.startswith("."):
        return False
    if folders[2:] == ["_metadata", "v2"]:
        return int(last) <= batch if _NUMBER.fullmatch(last) else False
    return not {"_metadata", "_stateSchema"}.isdisjoint(folders)


def _parse_log_offset(end: str) -> int | None:
    """Return the log number at which a file source ends, None for any other source."""
    value = None if end == NO_END else json.loads(end)
    number = value.get("logOffset") if isinstance(value, dict) and len(value) == 1 else None
    return number if isinstance(number, int) else None
