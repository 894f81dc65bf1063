"""Every name inside a store, built and parsed in one place; relative to the store, with ``/``.

::

    statestore.json                              written once, when the store is created
    checkpoints/0000000042.json                  manifest of checkpoint 42
    checkpoints/0000000042.expired               its tombstone
    files/0000000042-<token>-<n>.json            a long list of data files, which manifests name
    writers/0000000003.json                      claim of the third writer
    savepoints/<name>.json                       a savepoint: the checkpoint that it keeps
    pins/<token>.json                            a pin: the checkpoint that it keeps, and how long
    operators/<uid>/keyed/<state>/               table of one keyed state
      key_group=17/0000000042-00017-<token>.parquet       one key group (layout partitioned)
      0000000042-00017-<token>.parquet                    some from 17 on (layout ranged)
    operators/<uid>/changes/<state>/             changes of one keyed state
      0000000042-00017-<token>.parquet
    operators/<uid>/operator/<state>/            table of one operator state
      0000000042-<token>.parquet

Operator uids and state names are the user's; in a path every byte outside ``A-Z a-z 0-9 . _ -``,
and a leading ``.`` or ``_`` (Spark and Delta ignore such names), is written as ``~XX``. So the
mapping is one to one, and the path needs no escaping in a URL, in a shell or in a Delta log.
"""

from __future__ import annotations

import re
from unicodedata import normalize

from statestore.errors import InvalidArgumentError

__all__ = [
    "CHECKPOINTS",
    "FILES",
    "GREATEST_GIVEN_ID",
    "GREATEST_ID",
    "OPERATORS",
    "PINS",
    "SAVEPOINTS",
    "STORE_FILE",
    "WRITERS",
    "changes_table",
    "checkpoint_id_of",
    "data_file_id",
    "file_list_path",
    "folded",
    "folder_of",
    "generation_of",
    "is_data_file",
    "is_file_list",
    "is_inside",
    "is_leftover",
    "is_operator_file",
    "is_pin",
    "is_ranged_file",
    "is_savepoint",
    "key_group_of_file",
    "keyed_table",
    "manifest_path",
    "operator_file",
    "operator_folder",
    "operator_table",
    "partition_file",
    "pin_path",
    "ranged_file",
    "savepoint_path",
    "table_of",
    "tombstone_path",
    "unescape",
    "writer_path",
]

STORE_FILE = "statestore.json"
CHECKPOINTS = "checkpoints"
FILES = "files"
WRITERS = "writers"
SAVEPOINTS = "savepoints"
PINS = "pins"
OPERATORS = "operators"
KEY_GROUP = "key_group"

# Leaves room for the `key_group=` folder and file name in file systems that allow 255 bytes a name.
_LONGEST_NAME = 200
_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/([0-9]{{10}})\.(json|expired)")
_WRITER_FILE = re.compile(rf"{WRITERS}/([0-9]{{10}})\.json")
_SAVEPOINT_FILE = re.compile(rf"{SAVEPOINTS}/([^/.][^/]*)\.json")
_PIN_FILE = re.compile(rf"{PINS}/([^/.][^/]*)\.json")
_DATA_FILE = re.compile(r"([0-9]{10})-.*\.(parquet|json)")
_TABLE = re.compile(rf"{OPERATORS}/([^/]+)/(keyed|changes|operator)/([^/]+)")
_TABLE_DEPTH = 4
_TOKEN = "[0-9a-f]{16}(-[0-9a-f]{1,16})?"
_PARTITION_FILE = re.compile(
    rf"{KEY_GROUP}=(0|[1-9][0-9]{{0,4}})/[0-9]{{10}}-([0-9]{{5}})-{_TOKEN}\.parquet"
)
_RANGED_FILE = re.compile(rf"[0-9]{{10}}-[0-9]{{5}}-{_TOKEN}\.parquet")
_FILE_LIST = re.compile(rf"{FILES}/[0-9]{{10}}-[0-9a-f]{{32}}-[0-9a-f]{{1,8}}\.json")
_OPERATOR_FILE = re.compile(rf"[0-9]{{10}}-{_TOKEN}\.parquet")
# A part of a name that is a way, or ends a name: for some system, library or protocol.
_ASTRAY = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|[\\\x00]|^[A-Za-z]:")
_PUT_FOLDERS = "|".join((CHECKPOINTS, FILES, WRITERS, SAVEPOINTS, PINS))
_UNDER_WAY = rf"(({_PUT_FOLDERS}|{OPERATORS}(/[^/]+)+)/)?\.[^/]+\.([0-9a-f]{{32}}|upload-[^/]+)"
_LEFTOVER = re.compile(rf"({_UNDER_WAY}|\.probe-[0-9a-f]{{16}})")
GREATEST_ID = 10**10 - 1
# Ids above are given by the store alone, one after another: whatever id a job asks for, a thousand
# million checkpoints can follow it.
GREATEST_GIVEN_ID = 9 * 10**9 - 1


def escape(name: str) -> str:
    """Return ``name`` as one path element; InvalidArgumentError when it is empty or too long."""
    if not name:
        raise InvalidArgumentError("an operator uid or state name is empty; give it a name")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the name {name!r} is not valid Unicode (an unpaired surrogate); rename it"
        ) from error
    escaped = "".join(_escape_byte(byte, first=index == 0) for index, byte in enumerate(raw))
    if len(escaped) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name {name[:40]!r}… needs {len(escaped)} bytes in a path, at most "
            f"{_LONGEST_NAME} are allowed; shorten it"
        )
    return escaped


def unescape(element: str) -> str:
    """Return the name that :func:`escape` made ``element`` from; of what nobody can have escaped,
    bytes that are no text are shown as U+FFFD.
    """
    given = element.encode(errors="surrogateescape")
    raw = re.sub(rb"~([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), given)
    return raw.decode(errors="replace")


def _escape_byte(byte: int, *, first: bool) -> str:
    char = chr(byte)
    plain = char.isascii() and (char.isalnum() or char == "-" or (char in "._" and not first))
    return char if plain else f"~{byte:02X}"


def folded(name: str) -> str:
    """Return what a name has in common with those that are taken for it: names that differ in case
    or in Unicode normalization alone.

    Where a file system folds case, files of two such names would be one. To a reader they look
    alike everywhere.
    """
    return normalize("NFC", normalize("NFC", name).lower())


def manifest_path(checkpoint_id: int) -> str:
    """Return the name of the manifest of a checkpoint."""
    return f"{CHECKPOINTS}/{_digits(checkpoint_id)}.json"


def tombstone_path(checkpoint_id: int) -> str:
    """Return the name whose existence hides a checkpoint for ever."""
    return f"{CHECKPOINTS}/{_digits(checkpoint_id)}.expired"


def file_list_path(checkpoint_id: int, token: str, number: int) -> str:
    """Return the name of list ``number`` of data files of an attempt, whose ``token`` no other
    has.
    """
    return f"{FILES}/{_digits(checkpoint_id)}-{token}-{number:x}.json"


def is_file_list(path: str) -> bool:
    """Return whether :func:`file_list_path` gives such a name."""
    return _FILE_LIST.fullmatch(path) is not None


def checkpoint_id_of(path: str) -> tuple[int, bool] | None:
    """Return (checkpoint id, is it a tombstone?) of a file's name in the store, None when it is
    neither.
    """
    match = _CHECKPOINT_FILE.fullmatch(path)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]), match[2] == "expired"


def writer_path(generation: int) -> str:
    """Return the name of the claim of a writer generation, 1 or more."""
    return f"{WRITERS}/{generation:010}.json"


def generation_of(path: str) -> int | None:
    """Return the writer generation that a file's name in the store claims, None when it claims
    none.
    """
    match = _WRITER_FILE.fullmatch(path)
    return int(match[1]) or None if match else None


def savepoint_path(name: str) -> str:
    """Return the name of the document of a savepoint."""
    return f"{SAVEPOINTS}/{escape(name)}.json"


def pin_path(token: str) -> str:
    """Return the name of the document of a pin."""
    return f"{PINS}/{escape(token)}.json"


def is_pin(path: str) -> bool:
    """Return whether a file's name in the store is that of a pin's document."""
    return _PIN_FILE.fullmatch(path) is not None


def is_savepoint(path: str) -> bool:
    """Return whether a file's name in the store is that of a savepoint's document, also one that
    nobody can have given.
    """
    return _SAVEPOINT_FILE.fullmatch(path) is not None


def operator_folder(uid: str) -> str:
    """Return the folder of an operator's tables."""
    return f"{OPERATORS}/{escape(uid)}"


def keyed_table(uid: str, state: str) -> str:
    """Return the folder of a keyed state's table."""
    return f"{operator_folder(uid)}/keyed/{escape(state)}"


def changes_table(uid: str, state: str) -> str:
    """Return the folder of a keyed state's changes."""
    return f"{operator_folder(uid)}/changes/{escape(state)}"


def operator_table(uid: str, state: str) -> str:
    """Return the folder of an operator state's table."""
    return f"{operator_folder(uid)}/operator/{escape(state)}"


def partition_file(checkpoint_id: int, key_group: int, token: str) -> str:
    """Return a data file's name inside a keyed table; ``token`` is new for every attempt to
    write.
    """
    return f"{KEY_GROUP}={key_group}/{_digits(checkpoint_id)}-{key_group:05}-{token}.parquet"


def ranged_file(checkpoint_id: int, first: int, token: str) -> str:
    """Return the name of a data file with several key groups, of which ``first`` is the first."""
    return f"{_digits(checkpoint_id)}-{first:05}-{token}.parquet"


def operator_file(checkpoint_id: int, token: str) -> str:
    """Return a data file's name inside an operator state's table."""
    return f"{_digits(checkpoint_id)}-{token}.parquet"


def table_of(path: str) -> tuple[str, str, str] | None:
    """Return (operator uid, ``keyed``, ``changes`` or ``operator``, state) of a table's folder,
    None for what is none.
    """
    match = _TABLE.fullmatch(path)
    if match is None:
        return None
    uid, state = unescape(match[1]), unescape(match[3])
    try:
        own = (escape(uid), escape(state)) == (match[1], match[3])
    except InvalidArgumentError:
        return None
    return (uid, match[2], state) if own else None


def folder_of(path: str) -> str:
    """Return the folder of the table that a data file's name in the store lies in."""
    return "/".join(path.split("/")[:_TABLE_DEPTH])


def key_group_of_file(path: str) -> int | None:
    """Return the key group of a name that :func:`partition_file` gave, None of another one."""
    match = _PARTITION_FILE.fullmatch(path)
    if match is None or int(match[1]) != int(match[2]):
        return None
    return int(match[1])


def is_ranged_file(path: str) -> bool:
    """Return whether :func:`ranged_file` gives such a name."""
    return _RANGED_FILE.fullmatch(path) is not None


def is_operator_file(path: str) -> bool:
    """Return whether :func:`operator_file` gives such a name."""
    return _OPERATOR_FILE.fullmatch(path) is not None


def is_inside(path: str) -> bool:
    """Return whether a name can be that of a file in a store, and of nothing outside of it: parts
    with ``/`` between them, of which none is empty, ``.`` or ``..``, without a backslash, a NUL or
    a drive's letter.
    """
    return _ASTRAY.search(path) is None


def is_data_file(path: str) -> bool:
    """Return whether a name in the store is that of a data file, whoever wrote it, or of a list of
    such.

    That is a Parquet file below the folder of a table, but for what Spark and Delta keep for
    themselves in folders whose names begin with ``_`` or ``.``, such as the checkpoints of a Delta
    log.
    """
    folder, *parts = path.split("/")
    plain = not any(part.startswith(("_", ".")) for part in parts)
    is_parquet = folder == OPERATORS and path.endswith(".parquet") and plain and is_inside(path)
    return (is_parquet and table_of(folder_of(path)) is not None) or is_file_list(path)


def data_file_id(path: str) -> int | None:
    """Return the checkpoint for which a data file, or a list of such, was written; None when its
    name says none.
    """
    match = _DATA_FILE.match(path.rpartition("/")[2])
    return int(match[1]) or None if match else None


def is_leftover(path: str) -> bool:
    """Return whether a name is that of a file under way, or of the probe before a store is made,
    which only a crash leaves behind.
    """
    return _LEFTOVER.fullmatch(path) is not None


def _digits(checkpoint_id: int) -> str:
    if not 0 < checkpoint_id <= GREATEST_ID:
        raise InvalidArgumentError(f"a checkpoint id lies in 1..{GREATEST_ID}, not {checkpoint_id}")
    return f"{checkpoint_id:010}"
