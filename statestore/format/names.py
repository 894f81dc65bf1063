"""All names inside a store, built and parsed in one place; relative to the store, with ``/``.

::

    statestore.json                              written once, when the store is created
    checkpoints/0000000042.json                  manifest of checkpoint 42
    checkpoints/0000000042.expired               its tombstone
    files/0000000042-<token>-<n>.json            a long list of data files, which manifests name
    writers/0000000003.json                      claim of the third writer
    savepoints/<name>.json                       a savepoint: the checkpoint that it keeps
    pins/<token>.json                            a pin: the checkpoint that it keeps, and how long
    deletions/<when>=<command>=…                 the record of a deletion, an empty file
    operators/<uid>/keyed/<state>/               table of one keyed state
      key_group=17/0000000042-00017-<token>.parquet       one key group (layout partitioned)
      0000000042-00017-<token>.parquet                    some from 17 on (layout ranged)
    operators/<uid>/changes/<state>/             changes of one keyed state
      0000000042-00017-<token>.parquet
    operators/<uid>/operator/<state>/            table of one operator state
      0000000042-<token>.parquet

Operator uids and state names are chosen by the user. In a path every byte outside of ``A-Z a-z 0-9
. _ -``, and a leading ``.`` or ``_`` (Spark and Delta ignore such names), is written as ``~XX``. So
the mapping is reversible, and the path needs no escaping in a URL, in a shell or in a Delta log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from unicodedata import normalize

from statestore.errors import InvalidArgumentError

STORE_FILE = "statestore.json"
CHECKPOINTS = "checkpoints"
FILES = "files"
WRITERS = "writers"
SAVEPOINTS = "savepoints"
PINS = "pins"
DELETIONS = "deletions"
OPERATORS = "operators"
KEY_GROUP = "key_group"
MARK = "__deleted__"
"""The column of changes that tells upserts from delete markers.

It is 0 for an upsert. For a delete marker it is the number of leading identity columns by which
the deleted rows are selected."""
SUBTASK, POSITION = "subtask", "position"
RESERVED_COLUMNS = (KEY_GROUP, MARK)
"""The names of columns that the store adds to the rows of keyed states."""
RESERVED_ELEMENT_COLUMNS = (SUBTASK, POSITION)
"""The names of columns that the store adds to the elements of operator states."""

# This leaves room for the `key_group=` folder and file name if a file system allows 255 bytes.
_LONGEST_NAME = 200
_UNESCAPED = re.compile(rb"\A[._]|[^A-Za-z0-9._-]")
_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/([0-9]{{10}})\.(json|expired)")
_WRITER_FILE = re.compile(rf"{WRITERS}/([0-9]{{10}})\.json")
_SAVEPOINT_FILE = re.compile(rf"{SAVEPOINTS}/([^/.][^/]*)\.json")
_PIN_FILE = re.compile(rf"{PINS}/([^/.][^/]*)\.json")
_DELETION_FILE = re.compile(
    rf"{DELETIONS}/([0-9]{{13}})=([a-z]+)={'([0-9]{1,19})=' * 5}([^=/]+)=([^=/]+)=[0-9a-f]{{8}}"
)
_LONGEST_TEXT = 48  # in the name of a deletion's record
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
# Parts of a name that lead elsewhere, or end a name, in some system, library or protocol.
ASTRAY = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|[\\\x00]|^[A-Za-z]:")
_PUT_FOLDERS = "|".join((CHECKPOINTS, FILES, WRITERS, SAVEPOINTS, PINS, DELETIONS))
_UNDER_WAY = rf"(({_PUT_FOLDERS}|{OPERATORS}(/[^/]+)+)/)?\.[^/]+\.([0-9a-f]{{32}}|upload-[^/]+)"
_LEFTOVER = re.compile(rf"({_UNDER_WAY}|\.probe-[0-9a-f]{{16}})")
GREATEST_ID = 10**10 - 1
# Greater ids are assigned only by the store, one after another. So after any id that a job
# requests, a billion more checkpoints can follow.
GREATEST_GIVEN_ID = 9 * 10**9 - 1


def refuse_reserved(
    names: Iterable[str], subject: str, reserved: Sequence[str] = RESERVED_COLUMNS
) -> None:
    """Raise InvalidArgumentError for a column whose name is reserved for the store.

    Names that differ only in case are the same name, because Spark and DuckDB ignore case.
    """
    for name in names:
        if name.lower() in reserved:
            raise InvalidArgumentError(
                f"{subject}: the column name {name!r} is reserved for the store "
                f"({', '.join(reserved)}); remove the column, or give it another name"
            )


def escape(name: str) -> str:
    """Return ``name`` as one path element; InvalidArgumentError if it is empty or too long."""
    if not name:
        raise InvalidArgumentError("an operator uid or state name is empty; choose a name")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the name {name!r} is not valid Unicode (an unpaired surrogate); rename it"
        ) from error
    escaped = _UNESCAPED.sub(lambda byte: b"~%02X" % byte[0][0], raw).decode()
    if len(escaped) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name {name[:40]!r}… needs {len(escaped)} bytes in a path, but at most "
            f"{_LONGEST_NAME} are allowed; shorten it"
        )
    return escaped


def unescape(element: str) -> str:
    """Reverse :func:`escape`.

    For an element that ``escape`` cannot have produced, invalid bytes become U+FFFD.
    """
    encoded = element.encode(errors="surrogateescape")
    raw = re.sub(rb"~([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), encoded)
    return raw.decode(errors="replace")


def fold_name(name: str) -> str:
    """Return the form that is equal for names that differ only in case or Unicode normalization.

    On a file system that ignores case, two such names would be one file. They also look alike to
    readers.
    """
    return normalize("NFC", normalize("NFC", name).lower())


def manifest_path(checkpoint_id: int) -> str:
    """Return the name of the manifest of a checkpoint."""
    return f"{CHECKPOINTS}/{_digits(checkpoint_id)}.json"


def tombstone_path(checkpoint_id: int) -> str:
    """Return the name of the tombstone that hides a checkpoint permanently."""
    return f"{CHECKPOINTS}/{_digits(checkpoint_id)}.expired"


def file_list_path(checkpoint_id: int, token: str, number: int) -> str:
    """Return the name of an attempt's list ``number``; its ``token`` is unique."""
    return f"{FILES}/{_digits(checkpoint_id)}-{token}-{number:x}.json"


def is_file_list(path: str) -> bool:
    """Return whether :func:`file_list_path` can return this name."""
    return _FILE_LIST.fullmatch(path) is not None


def checkpoint_id_of(path: str) -> tuple[int, bool] | None:
    """Return (checkpoint id, is tombstone) of a file's name in the store; None for other files."""
    match = _CHECKPOINT_FILE.fullmatch(path)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]), match[2] == "expired"


def writer_path(generation: int) -> str:
    """Return the name of the claim of a writer generation, 1 or more."""
    return f"{WRITERS}/{generation:010}.json"


def generation_of(path: str) -> int | None:
    """Return the writer generation that a file in the store claims; None for other files."""
    match = _WRITER_FILE.fullmatch(path)
    return int(match[1]) or None if match else None


def is_savepoint_name(name: str) -> bool:
    """Return whether a savepoint may have this name, which must not be a checkpoint's reference."""
    return name not in ("", "latest", "all") and not name.isdigit()


def savepoint_path(name: str) -> str:
    """Return the name of the document of a savepoint."""
    return f"{SAVEPOINTS}/{escape(name)}.json"


def pin_path(token: str) -> str:
    """Return the name of the document of a pin."""
    return f"{PINS}/{escape(token)}.json"


def deletion_path(
    deleted_at_ms: int, command: str, counts: Iterable[int], actor: str, why: str, token: str
) -> str:
    """Return the name of the record of a deletion; long texts are cut, and ``token`` is unique.

    ``counts`` are the checkpoints, the first and the last of them, the files, and their bytes.
    """
    parts = (*map(str, counts), _escape_start(actor), _escape_start(why))
    return f"{DELETIONS}/{deleted_at_ms:013}={command}={'='.join(parts)}={token}"


def _escape_start(text: str) -> str:
    escaped = ""
    for part in map(escape, text):
        if len(escaped) + len(part) > _LONGEST_TEXT:
            break
        escaped += part
    return escaped


def deletion_of(path: str) -> tuple[int, str, tuple[int, ...], str, str] | None:
    """Return the arguments of :func:`deletion_path` without the token; None for other files."""
    match = _DELETION_FILE.fullmatch(path)
    if match is None:
        return None
    deleted_at_ms, command, *counts, actor, why = match.groups()
    return (int(deleted_at_ms), command, tuple(map(int, counts)), unescape(actor), unescape(why))


def is_pin(path: str) -> bool:
    """Return whether a file in the store has the name of a pin's document."""
    return _PIN_FILE.fullmatch(path) is not None


def is_savepoint(path: str) -> bool:
    """Return whether a file in the store has the name of a savepoint's document.

    It may be a name that :func:`savepoint_path` cannot return.
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
    """Return a data file's name inside a keyed table; ``token`` is new for every write attempt."""
    return f"{KEY_GROUP}={key_group}/{_digits(checkpoint_id)}-{key_group:05}-{token}.parquet"


def ranged_file(checkpoint_id: int, first: int, token: str) -> str:
    """Return the name of a data file with several key groups, the first of which is ``first``."""
    return f"{_digits(checkpoint_id)}-{first:05}-{token}.parquet"


def operator_file(checkpoint_id: int, token: str) -> str:
    """Return a data file's name inside an operator state's table."""
    return f"{_digits(checkpoint_id)}-{token}.parquet"


def table_of(path: str) -> tuple[str, str, str] | None:
    """Return (operator uid, ``keyed``, ``changes`` or ``operator``, state) of a table's folder.

    None for any other path.
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
    """Return the folder of the table that contains a data file, by its name in the store."""
    return "/".join(path.split("/")[:_TABLE_DEPTH])


def key_group_of_file(path: str) -> int | None:
    """Return the key group in a name from :func:`partition_file`; None for any other name."""
    match = _PARTITION_FILE.fullmatch(path)
    if match is None or int(match[1]) != int(match[2]):
        return None
    return int(match[1])


def is_ranged_file(path: str) -> bool:
    """Return whether :func:`ranged_file` can return this name."""
    return _RANGED_FILE.fullmatch(path) is not None


def is_operator_file(path: str) -> bool:
    """Return whether :func:`operator_file` can return this name."""
    return _OPERATOR_FILE.fullmatch(path) is not None


def is_inside(path: str) -> bool:
    """Return whether a name can only refer to a file inside a store.

    It has nonempty parts separated by ``/``, without ``.``, ``..``, a backslash, a NUL or a drive
    letter.
    """
    return ASTRAY.search(path) is None


def is_data_file(path: str) -> bool:
    """Return whether a name in the store belongs to a data file or a list of data files.

    A data file is a Parquet file below the folder of a table, whoever wrote it. Files in folders
    that begin with ``_`` or ``.`` are excluded: Spark and Delta use them for their own files, such
    as the checkpoints of a Delta log.
    """
    folder, *parts = path.split("/")
    plain = not any(part.startswith(("_", ".")) for part in parts)
    is_parquet = folder == OPERATORS and path.endswith(".parquet") and plain and is_inside(path)
    return (is_parquet and table_of(folder_of(path)) is not None) or is_file_list(path)


def data_file_id(path: str) -> int | None:
    """Return the id of the checkpoint for which a data file, or a list of data files, was written.

    The result is None if the name contains no id.
    """
    match = _DATA_FILE.match(path.rpartition("/")[2])
    return int(match[1]) or None if match else None


def is_leftover(path: str) -> bool:
    """Return whether a name belongs to a temporary file that only a crash leaves behind.

    Such a file was being written, or probed the file system before a store was created.
    """
    return _LEFTOVER.fullmatch(path) is not None


def _digits(checkpoint_id: int) -> str:
    if not 0 < checkpoint_id <= GREATEST_ID:
        raise InvalidArgumentError(
            f"a checkpoint id must be in 1..{GREATEST_ID}, not {checkpoint_id}"
        )
    return f"{checkpoint_id:010}"
