"""Read the description of a query's stateful operator: its name, its kind, and its stores.

Spark 4 writes the description into the operator's folder. It names schema files by their absolute
paths, which are wrong after a location was moved or copied. Spark 3 did not write it. For Spark 3,
this module builds it from the schema files of the stores, and from the name of the operator, which
a user passes if the columns do not tell it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    MissingFileError,
    UnsupportedTypeError,
)
from statestore.interop.spark.query_settings import GROUPS_FORMAT, JOIN_FORMAT

DEDUPE = "dedupe"

_SCHEMAS = "/_stateSchema/"
_JOIN = frozenset(
    f"{side}-{store}"
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
)
_SESSION_START = "sessionStartTime"
_GROUPS = ("flatMapGroupsWithState", "applyInPandasWithState")
_SESSION, _AGGREGATION = "sessionWindowStateStoreSaveExec", "stateStoreSave"
_NO_VALUE = (("__dummy__", "void"),)
_NO_VALUE_SCHEMA = {
    "type": "struct",
    "fields": [{"name": "__dummy__", "type": "void", "nullable": True, "metadata": {}}],
}
_ONLY_VALUES = {
    _NO_VALUE: DEDUPE,
    (("expiresAtMicros", "long"),): "dedupeWithinWatermark",
}
_LIMIT = ((("key", "void"),), (("value", "long"),))


class Columns(NamedTuple):
    """The names and types of a store's columns; a type that is not simple is JSON."""

    key: tuple[tuple[str, str], ...]
    value: tuple[tuple[str, str], ...]


def schema_files(operator: Operator, store: str) -> tuple[str, ...]:
    """Return the names of a store's schema files, from the oldest to the newest."""
    document = json.loads(operator.description.partition(b"\n")[2])
    paths = next(
        (
            info.get("stateSchemaFilePaths")
            for info in document["stateStoreInfo"]
            if info["storeName"] == store
        ),
        None,
    )
    folder = f"state/{operator.number}"
    if paths:
        return tuple(f"{folder}{_SCHEMAS}{split_schema_path(path)[1]}" for path in paths)
    return (f"{folder}/0/{'' if store == 'default' else f'{store}/'}_metadata/schema",)


def schema_folder(location: str, operator: int) -> str:
    """Return the folder of an operator's schema files, with a slash at the end."""
    return f"{location}/state/{operator}{_SCHEMAS}"


def split_schema_path(path: str) -> tuple[str, str]:
    """Return the location and the relative path of a schema file that a description names."""
    folder, _, name = path.rpartition(_SCHEMAS)
    return re.sub(r"/state/\d+$", "", folder), name


def rewrite_description(content: bytes, folder: str, partitions: int | None = None) -> bytes:
    """Return a description whose schema files are in another folder.

    Args:
        content: the file.
        folder: the folder of the schema files, as :func:`schema_folder` returns it.
        partitions: another number of partitions.
    """
    version, document = content.split(b"\n", 1)
    operator = json.loads(document)
    for store in operator["stateStoreInfo"]:
        store["numPartitions"] = partitions or store["numPartitions"]
        if store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = [
                folder + split_schema_path(path)[1] for path in store["stateSchemaFilePaths"]
            ]
    return version + b"\n" + json.dumps(operator, separators=(",", ":")).encode()


def build_description(
    operator: int, name: str, stores: Mapping[str, Columns], partitions: int
) -> bytes:
    """Return the description of an operator that has none, as Spark 4 writes it."""
    # Sessions are found by all key columns except the last one, which is the session's start.
    prefix = {store: len(columns.key) - 1 for store, columns in stores.items()}
    document = {
        "operatorInfo": {"operatorId": operator, "operatorName": name},
        "stateStoreInfo": [
            {
                "storeName": store,
                "numColsPrefixKey": prefix[store] if name == _SESSION else 0,
                "numPartitions": partitions,
            }
            for store in stores
        ],
    }
    return b"v1\n" + json.dumps(document, separators=(",", ":")).encode()


def find_candidates(stores: Mapping[str, Columns], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the operators that can have written stores with these columns."""
    if len(stores) > 1:
        return ("symmetricHashJoin",) if stores.keys() == _JOIN else ()
    (columns,) = stores.values()
    keys, values = dict(columns.key), dict(columns.value)
    if columns == _LIMIT:
        return ("globalLimit",)
    if columns.key and columns.key[-1][0] == _SESSION_START:
        return (_SESSION,)
    if columns.value in _ONLY_VALUES:
        return (_ONLY_VALUES[columns.value],)
    if "groupState" in values:
        return _GROUPS
    # A deduplication before Spark 3.3.1 described all columns of its input as its value. The value
    # of an aggregation has the keys only in its old format.
    has_keys = keys.keys() <= values.keys()
    return (
        _AGGREGATION,
        *((DEDUPE,) if keys and has_keys else ()),
        *(_GROUPS if settings[GROUPS_FORMAT] == "1" else ()),
    )


@dataclass(frozen=True)
class StoredSchema:
    """The columns of a store, or of one of its column families, as JSON of Spark's structs."""

    family: str
    key: str
    value: str


def read_schemas(content: bytes) -> tuple[StoredSchema, ...]:
    """Return the columns in a schema file: of a store, or since version 3 of column families.

    A column family has the numbers of its schemas, and an encoder of its keys, which follow from
    the columns (``SchemaHelper.SchemaV3Reader``).

    Raises:
        ValueError: if the file has another format, or is cut off.
    """
    file = io.BytesIO(content)
    version = _read_text(file)
    if version == "v3":
        return tuple(_read_family(file) for _ in range(_read_number(file, 4)))
    if version not in ("v1", "v2"):
        raise ValueError(f"it begins with {version[:40]!r} instead of v1, v2 or v3")
    read = _read_text if version == "v1" else _read_pieces
    return (StoredSchema("default", read(file), read(file)),)


def _read_family(file: io.BytesIO) -> StoredSchema:
    name = _read_text(file)
    _read_number(file, 2)
    key = _read_pieces(file)
    _read_number(file, 2)
    value = _read_pieces(file)
    for _encoder in ("key", "user key"):
        _read_pieces(file)
    return StoredSchema(name, key, value)


def _read_pieces(file: io.BytesIO) -> str:
    return "".join(_read_text(file) for _ in range(_read_number(file, 4)))


def parse_schema(content: bytes) -> Columns:
    """Return the columns in a schema file of Spark 3.

    Raises:
        ValueError: if the file has another format, or is cut off.
    """
    schema, *others = read_schemas(content)
    if others:
        raise ValueError("it has several column families")
    return Columns(_parse_fields(schema.key), _parse_fields(schema.value))


def correct_dedupe_schema(content: bytes) -> bytes:
    """Return the schema file of a deduplication without columns of the value.

    The value is empty. Spark before 3.3.1 described it by all columns of the operator's input, and
    later versions keep this file, but their reader refuses the rows.

    Raises:
        ValueError: as :func:`parse_schema`.
    """
    if parse_schema(content).value == _NO_VALUE:
        return content
    file = io.BytesIO(content)
    has_pieces = _read_text(file) == "v2"
    for _ in range(_read_number(file, 4) if has_pieces else 1):
        _read_text(file)
    text = json.dumps(_NO_VALUE_SCHEMA, separators=(",", ":")).encode()
    pieces = (1).to_bytes(4, "big") if has_pieces else b""
    return content[: file.tell()] + pieces + len(text).to_bytes(2, "big") + text


def _parse_fields(text: str) -> tuple[tuple[str, str], ...]:
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("fields"), list):
        raise ValueError("it has no columns")
    return tuple(_parse_field(field) for field in document["fields"])


def _parse_field(field: Any) -> tuple[str, str]:
    if not isinstance(field, dict) or not {"name", "type"} <= field.keys():
        raise ValueError("a column has no name or no type")
    column_type = field["type"]
    text = column_type if isinstance(column_type, str) else json.dumps(column_type)
    return str(field["name"]), text


def _read_text(file: io.BytesIO) -> str:
    # Java writes some characters in a form of its own, which is irrelevant for a comparison.
    return _read_bytes(file, _read_number(file, 2)).decode(errors="replace")


def _read_number(file: io.BytesIO, count: int) -> int:
    return int.from_bytes(_read_bytes(file, count), "big")


def _read_bytes(file: io.BytesIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("it is cut off")
    return data


if TYPE_CHECKING:
    from statestore.interop.spark.location import CheckpointLocation

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
CONTINUE_A_COPY = (
    "Copy the location, run the query with Spark 4 and the copy until it has completed a "
    "micro-batch, and use the copy"
)


_NUMBER = re.compile(r"\d{1,18}")
_MOST_PARTITIONS = 1_000_000  # far above any real one; for each, folders are looked for


def read_operator(
    location: CheckpointLocation, number: int, names: tuple[str, ...], batch: int
) -> Operator:
    """Return an operator of a micro-batch.

    Args:
        location: the checkpoint location.
        number: the operator's number.
        names: the names of all files below ``state``.
        batch: the micro-batch.

    Raises:
        InvalidArgumentError: if an operator of Spark 3 must be named, or has another name.
        UnsupportedTypeError: for unknown stores of Spark 3.
        MissingFileError or DamagedFileError: if a file of it is missing or damaged.
        FormatVersionError: if an unsupported version of Spark wrote it.
    """
    folder = f"state/{number}/_metadata"
    versions = [
        int(name.rpartition("/")[2])
        for name in names
        if name.startswith(f"{folder}/v2/") and _NUMBER.fullmatch(name.rpartition("/")[2])
    ]
    kept = [version for version in versions if version <= batch]
    name = f"{folder}/v2/{max(kept)}" if kept else f"{folder}/metadata"
    if name not in names:
        content = _build_description(location, number, names, batch)
        operator = _parse_operator(location, number, name, content, names)
        corrections = {name: content, **_correct_schema(location, operator, names)}
        return replace(operator, corrections=corrections)
    operator = _parse_operator(location, number, name, location.read_content(name), names)
    if location.operator_names.get(number, operator.name) != operator.name:
        raise InvalidArgumentError(
            f"operator {number} of {location.url} is {operator.name}, as {name} says, and not "
            f"{location.operator_names[number]}"
        )
    return replace(operator, corrections=_correct_schema(location, operator, names))


def _correct_schema(
    location: CheckpointLocation, operator: Operator, names: tuple[str, ...]
) -> dict[str, bytes]:
    """Return a deduplication's schema file by its name if it must be corrected."""
    name = f"state/{operator.number}/0/_metadata/schema"
    if operator.name != DEDUPE or name not in names:
        return {}
    content = location.read_content(name)
    with _refuse_damaged_schema(location, name):
        corrected = correct_dedupe_schema(content)
    return {} if corrected == content else {name: corrected}


def _build_description(
    location: CheckpointLocation, number: int, names: tuple[str, ...], batch: int
) -> bytes:
    """Describe an operator of Spark 3, which has no description."""
    settings = location.plan(batch).settings
    stores = dict(_read_schemas(location, number, names))
    if not stores:
        raise FormatVersionError(_explain_old_format(location, number, names, settings))
    candidates = find_candidates(stores, settings)
    what = (
        f"{location.url} does not say what operator {number} is, because Spark before 4.0 wrote it"
    )
    if not candidates:
        raise UnsupportedTypeError(f"{what}, and its stores are unknown: {', '.join(stores)}")
    operator_name = location.operator_names.get(number, candidates[0])
    if operator_name not in candidates:
        raise InvalidArgumentError(
            f"operator {number} of {location.url} cannot be {operator_name}: its columns are "
            f"those of {' or '.join(candidates)}"
        )
    if len(candidates) > 1 and number not in location.operator_names:
        raise InvalidArgumentError(
            f"{what}. By its columns it can be {' or '.join(candidates)}: pass the right one, "
            f"such as --operator-name {number}={candidates[-1]}, or operator_names={{{number}: "
            f"{candidates[-1]!r}}} in Python"
        )
    return build_description(
        number, operator_name, stores, _count_partitions(location, number, names, settings)
    )


def _read_schemas(
    location: CheckpointLocation, number: int, names: tuple[str, ...]
) -> Iterator[tuple[str, Columns]]:
    """Yield the name and the columns of each store that has a schema file of its own."""
    pattern = re.compile(rf"state/{number}/0/(?:([^/]+)/)?_metadata/schema")
    for name in names:
        if match := pattern.fullmatch(name):
            content = location.read_content(name)
            with _refuse_damaged_schema(location, name):
                columns = parse_schema(content)
            yield match[1] or "default", columns


@contextmanager
def _refuse_damaged_schema(location: CheckpointLocation, name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{location.url}/{name} is damaged: {error}. Replace it with an intact copy"
        ) from error


def _count_partitions(
    location: CheckpointLocation, number: int, names: tuple[str, ...], settings: Mapping[str, str]
) -> int:
    """Return an operator's number of partitions; MissingFileError if a folder is missing."""
    partitions = int(settings.get(SHUFFLE_PARTITIONS, "0"))
    if not _has_partitions(number, names, partitions):
        raise MissingFileError(
            f"{location.url} has {partitions:,} partitions, but operator {number} does not have "
            "the folders of all of them"
        )
    return partitions


def _has_partitions(number: int, names: tuple[str, ...], partitions: int) -> bool:
    """Return whether an operator has files of each partition, or of partition 0 only.

    An operator whose rows are all in one partition, such as an aggregation without a key, still
    has the query's number of partitions in its description.
    """
    folders = {
        int(part)
        for name in names
        if name.startswith(f"state/{number}/") and _NUMBER.fullmatch(part := path_part(name, 2))
    }
    if folders == {0}:
        return 0 < partitions <= _MOST_PARTITIONS
    return partitions <= len(folders) and folders.issuperset(range(partitions))


def _explain_old_format(
    location: CheckpointLocation, number: int, names: tuple[str, ...], settings: Mapping[str, str]
) -> str:
    if any(name.startswith(f"state/{number}/_stateSchema/") for name in names):
        return (
            f"{location.url} has schema files of operator {number}, but no file in state/{number}/"
            "_metadata, which says what the operator is. If the location was copied, copy this "
            "folder too"
        )
    what = f"{location.url} does not describe the columns of operator {number}"
    is_join = any(name.startswith(f"state/{number}/0/left-") for name in names)
    if is_join and settings[JOIN_FORMAT] == "1":
        return (
            f"{what}, a stream-stream join of Spark 2.4 or before ({JOIN_FORMAT} is 1). Spark "
            "4 cannot continue it either: run the query with a new checkpoint location"
        )
    return f"{what}: it was written before Spark 3.1. {CONTINUE_A_COPY}"


def _parse_operator(
    location: CheckpointLocation, number: int, name: str, content: bytes, names: tuple[str, ...]
) -> Operator:
    version, *lines = location.split_lines(name, content)
    if version not in ("v1", "v2"):
        raise FormatVersionError(unsupported_version(location.url, name, version))
    document = location.decode(name, "".join(lines).encode(), _OperatorMetadata)
    if not document.stateStoreInfo or any(
        store.numPartitions < 1 for store in document.stateStoreInfo
    ):
        raise DamagedFileError(
            f"{location.url}/{name} is invalid: operator {number} has no store, or one "
            "without partitions"
        )
    most = max(store.numPartitions for store in document.stateStoreInfo)
    if not _has_partitions(number, names, most):
        raise DamagedFileError(
            f"{location.url}/{name} is invalid: operator {number} has {most:,} partitions, but "
            "not the folders of all of them"
        )
    if any(store.stateSchemaFilePath for store in document.stateStoreInfo):
        raise FormatVersionError(
            f"{location.url}/{name} was written by a preview of Spark 4.0, whose state no release "
            "of Spark can read: run the query with a new checkpoint location"
        )
    paths = [path for store in document.stateStoreInfo for path in store.stateSchemaFilePaths]
    stores = tuple(
        StoreInfo(store.storeName, store.numPartitions) for store in document.stateStoreInfo
    )
    info = document.operatorInfo
    properties = location.decode(
        name, (document.operatorPropertiesJson or "{}").encode(), _Properties
    )
    variables = tuple(
        VariableInfo(variable.stateName, variable.stateVariableType, variable.ttlEnabled)
        for variable in properties.stateVariables
    )
    return Operator(
        info.operatorId,
        info.operatorName,
        stores,
        variables,
        name,
        content,
        moved_from=_find_old_location(location, number, paths, names),
        has_families=bool(paths),
    )


def _find_old_location(
    location: CheckpointLocation, number: int, paths: list[str], names: tuple[str, ...]
) -> str | None:
    """Return the location that the paths of schema files name, if it is another one.

    Raises:
        MissingFileError: if this location does not have one of these files.
    """
    moved_from = None
    for path in paths:
        origin, name = split_schema_path(path)
        if f"state/{number}/_stateSchema/{name}" not in names:
            raise MissingFileError(
                f"{location.url}/state/{number}/_stateSchema/{name} is missing; it describes the "
                f"columns of operator {number}. If the location was copied, copy this file too"
            )
        if _plain_path(origin) != _plain_path(location.spark_url):
            moved_from = origin
    return moved_from


def _plain_path(url: str) -> str:
    """Return a URL in the form in which Spark writes paths of a local file system."""
    return re.sub("^file:/+", "/", url)


def path_part(name: str, index: int) -> str:
    """Return a part of a file's name, an empty text if it has fewer parts."""
    parts = name.split("/")
    return parts[index] if len(parts) > index else ""


def unsupported_version(url: str, name: str, version: str) -> str:
    """Return the message about a file of the location ``url`` with an unknown version."""
    return (
        f"{url}/{name} begins with {version[:40]!r}: it has the format of an "
        "unsupported Spark version"
    )


VariableKind = Literal["ValueState", "ListState", "MapState", "TimerState"]


class _OperatorInfo(Struct, frozen=True):
    operatorId: int
    operatorName: str


class _StoreInfo(Struct, frozen=True):
    storeName: str
    numPartitions: int
    stateSchemaFilePaths: list[str] = []
    stateSchemaFilePath: str = ""


class _Variable(Struct, frozen=True):
    stateName: str
    stateVariableType: VariableKind
    ttlEnabled: bool = False


class _Properties(Struct, frozen=True):
    stateVariables: list[_Variable] = []


class _OperatorMetadata(Struct, frozen=True):
    operatorInfo: _OperatorInfo
    stateStoreInfo: list[_StoreInfo]
    operatorPropertiesJson: str = "{}"


@dataclass(frozen=True)
class StoreInfo:
    """One of an operator's stores: its name, and the number of its partitions."""

    name: str
    partitions: int


@dataclass(frozen=True)
class VariableInfo:
    """A variable of a transformWithState: its name and kind, and whether its values have a TTL."""

    name: str
    kind: VariableKind
    has_ttl: bool


@dataclass(frozen=True)
class Operator:
    """A stateful operator, as the file ``metadata`` (``state/0/_metadata/…``) describes it.

    ``description`` is the content of that file. ``corrections`` are the files with which Spark
    must read the operator, if the location lacks them or has wrong ones. ``moved_from`` is the
    location that the file ``metadata`` names, if it is another one. ``has_families`` is true if
    its store has several column families.
    """

    number: int
    name: str
    stores: tuple[StoreInfo, ...]
    variables: tuple[VariableInfo, ...]
    metadata: str
    description: bytes = b""
    corrections: Mapping[str, bytes] = field(default_factory=dict)
    moved_from: str | None = None
    has_families: bool = False
