"""The file that describes an operator: its name, its stores, and their number of partitions.

Spark 4 writes it. It names schema files by their absolute paths, which are wrong after a location
was moved or copied. Spark 3 did not write it. For Spark 3, this module builds it from the schema
files of the stores, and from the name of the operator, which a user passes if the columns do not
tell it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from statestore.interop.spark.query_settings import GROUPS_FORMAT

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


def parse_schema(content: bytes) -> Columns:
    """Return the columns in a schema file of Spark 3.

    Raises:
        ValueError: if the file has another format, or is cut off.
    """
    file = io.BytesIO(content)
    version = _read_text(file)
    if version not in ("v1", "v2"):
        raise ValueError(f"it begins with {version[:40]!r} instead of v1 or v2")
    key, value = (
        "".join(_read_text(file) for _ in range(_read_number(file, 4) if version == "v2" else 1))
        for _ in ("key", "value")
    )
    return Columns(_parse_fields(key), _parse_fields(value))


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
