"""All errors of the package, grouped by what the caller should do next.

::

    StateStoreError                               exit code, and what to do
    ├── InvalidArgumentError   (ValueError)        2  fix the call
    │   ├── NullKeyError                              a key column holds null
    │   ├── DuplicateKeyError                         two rows claim one entry of a state
    │   ├── UnsupportedTypeError                      no key of this type, or not storable
    │   └── SettingsError                             a settings file or option is wrong
    ├── NotFoundError          (LookupError)      10  check the name; `list` shows what exists
    │   ├── StoreNotFoundError                        no store at this URL
    │   ├── CheckpointNotFoundError
    │   └── StateNotFoundError                        no such operator or state
    ├── CommitConflictError                       11  another writer was first, or took over: retry
    │   └── LateCommitError                           visible, but later checkpoints may lack it
    ├── IncompatibleStateError                    12  change the job, or the state
    │   ├── ParallelismError   (ValueError)           (max) parallelism does not fit
    │   ├── SchemaMismatchError                       types differ from the stored ones
    │   ├── LeftOutStateError                         a checkpoint would lose a stored state
    │   └── UnclaimedStateError                       stored state that no operator claims
    ├── CorruptionError                           13  restore an older checkpoint
    │   ├── MissingFileError
    │   ├── DamagedFileError                          not what the manifest says
    │   └── MalformedManifestError
    ├── FormatVersionError                        14  upgrade statestore
    ├── StorageError                              15  see the cause; retry later
    ├── MissingDependencyError (ImportError)      16  install what the message names
    ├── ProcessorError                            17  fix the code that it names
    ├── IncompleteError                           18  see what was left out, before it is used
    └── QueryStoppedError                         19  reduce the query, or raise its limits

A class carries a stable ``kind`` (never renamed, for programs) and its ``exit_code`` (for shells).
Context is added on the way up with :meth:`BaseException.add_note`. Every error survives pickling,
because Spark carries errors from its workers to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "CheckpointNotFoundError",
    "CommitConflictError",
    "CorruptionError",
    "DamagedFileError",
    "DuplicateKeyError",
    "FormatVersionError",
    "IncompatibleStateError",
    "IncompleteError",
    "InvalidArgumentError",
    "LateCommitError",
    "LeftOutStateError",
    "MalformedManifestError",
    "MissingDependencyError",
    "MissingFileError",
    "NotFoundError",
    "NullKeyError",
    "ParallelismError",
    "ProcessorError",
    "QueryStoppedError",
    "SchemaMismatchError",
    "SettingsError",
    "StateNotFoundError",
    "StateStoreError",
    "StorageError",
    "StoreNotFoundError",
    "UnclaimedStateError",
    "UnsupportedTypeError",
]


@dataclass(frozen=True)
class Remedy:
    """Another way to avoid an error: a value of an argument, and its consequence."""

    argument: str
    value: int
    consequence: str


class StateStoreError(Exception):
    """Root of all errors of this package.

    ``str(error)`` is one sentence that also says what to do. An ``argument`` is the subject of the
    message, and a ``remedy`` follows it. Both have the argument's name in Python; :meth:`reword`
    replaces it.
    """

    kind = "error"
    exit_code = 1
    argument: str | None = None
    remedy: Remedy | None = None

    def __init__(
        self, *details: object, argument: str | None = None, remedy: Remedy | None = None
    ) -> None:
        """Store the details, and the argument and remedy if the message needs them."""
        super().__init__(*details)
        if argument is not None:
            self.argument = argument
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        """Return the message with the arguments' names in Python."""
        return self._worded(_in_python)

    def reword(self, word: Callable[[str, int | None], str | None]) -> None:
        """Replace the arguments' names in Python by the names of a command's or page's inputs.

        Args:
            word: Returns the text for an argument with a value, or without one if it is the
                subject. None if there is no input for it: then the remedy is left out, and the
                subject keeps its name.
        """
        if self.argument is None and self.remedy is None:
            return
        message = self._worded(word)
        self.argument = self.remedy = None
        self.args = (message, *self.args[1:])

    def _worded(self, word: Callable[[str, int | None], str | None]) -> str:
        message, remedy = str(self.args[0]) if self.args else "", self.remedy
        if self.argument is not None:
            message = f"{word(self.argument, None) or self.argument} {message}"
        text = None if remedy is None else word(remedy.argument, remedy.value)
        if remedy is None or text is None:
            return message
        return f"{message}, or pass {text}: {remedy.consequence}"


def _in_python(argument: str, value: int | None) -> str:
    return argument if value is None else f"{argument}={value}"


class InvalidArgumentError(StateStoreError, ValueError):
    """The call itself is wrong, and nothing was read or written. Fix the call."""

    kind = "invalid-argument"
    exit_code = 2


class NullKeyError(InvalidArgumentError):
    """Rows with a null key cannot be assigned to a key group (Flink throws NullPointerException).

    ``rows`` is the number of such rows, and ``examples`` are the first ones.
    """

    kind = "null-key"

    def __init__(self, message: str, rows: int = 1, examples: Sequence[str] = ()) -> None:
        """Store the message and the rows so that they survive pickling."""
        super().__init__(message, rows, tuple(examples))
        self.rows, self.examples = rows, tuple(examples)


class DuplicateKeyError(InvalidArgumentError):
    """Two rows have the same key, namespace, and map key or position."""

    kind = "duplicate-key"


class UnsupportedTypeError(InvalidArgumentError):
    """A column's type cannot be hashed as a key, or cannot be stored."""

    kind = "unsupported-type"


class SettingsError(InvalidArgumentError):
    """A settings file or option has an unknown name or a value out of its bounds."""

    kind = "settings"


class NotFoundError(StateStoreError, LookupError):
    """A name does not exist; the message lists the existing names."""

    kind = "not-found"
    exit_code = 10


class StoreNotFoundError(NotFoundError):
    """The URL holds no store (no ``statestore.json``)."""

    kind = "store-not-found"


class CheckpointNotFoundError(NotFoundError):
    """The store has no such checkpoint."""

    kind = "checkpoint-not-found"


class StateNotFoundError(NotFoundError):
    """The checkpoint has no such operator or state."""

    kind = "state-not-found"


class CommitConflictError(StateStoreError):
    """Another writer committed this id first, or has taken over the store.

    No part of this checkpoint is visible, except after a :class:`LateCommitError`. Open the store
    again and retry.
    """

    kind = "commit-conflict"
    exit_code = 11


class LateCommitError(CommitConflictError):
    """The checkpoint is visible, but later checkpoints may lack it.

    Another writer had taken over the store before the commit was confirmed, and its checkpoints may
    be without this one.
    """

    kind = "late-commit"


class IncompatibleStateError(StateStoreError):
    """The stored state does not fit the job that restores it."""

    kind = "incompatible-state"
    exit_code = 12


class ParallelismError(IncompatibleStateError, ValueError):
    """Parallelism or max parallelism is out of bounds, or differs from the stored one."""

    kind = "parallelism"


class SchemaMismatchError(IncompatibleStateError):
    """Key or value types differ from the stored ones."""

    kind = "schema-mismatch"


class LeftOutStateError(IncompatibleStateError):
    """The newest checkpoint has a state that the next one neither has nor drops by name."""

    kind = "left-out-state"


class UnclaimedStateError(IncompatibleStateError):
    """The snapshot has state of an operator that the job lacks, and this state would be lost."""

    kind = "unclaimed-state"


class CorruptionError(StateStoreError):
    """Stored bytes differ from the manifest. A retry does not help."""

    kind = "corruption"
    exit_code = 13


class MissingFileError(CorruptionError):
    """A file that the manifest names does not exist."""

    kind = "missing-file"


class DamagedFileError(CorruptionError):
    """A file that the manifest names is truncated, unreadable or contains other rows."""

    kind = "damaged-file"


class MalformedManifestError(CorruptionError):
    """A manifest is invalid; the message has the place as a path in the document."""

    kind = "malformed-manifest"


class FormatVersionError(StateStoreError):
    """The store was written by a newer release in a format that this one does not know."""

    kind = "format-version"
    exit_code = 14


class StorageError(StateStoreError):
    """The store could not be read or written; ``__cause__`` is the file system's own error."""

    kind = "storage"
    exit_code = 15


class MissingDependencyError(StateStoreError, ImportError):
    """An optional dependency is not installed or cannot be loaded; the message names it."""

    kind = "missing-dependency"
    exit_code = 16


class ProcessorError(StateStoreError):
    """The user's code failed for a key; nothing of the micro-batch was committed."""

    kind = "processor"
    exit_code = 17


class IncompleteError(StateStoreError):
    """The command finished, but its result lacks state of its source, which the message names."""

    kind = "incomplete"
    exit_code = 18


class QueryStoppedError(StateStoreError):
    """An SQL query was cancelled, or it reached its time or memory limit."""

    kind = "query-stopped"
    exit_code = 19


def unknown_choice(what: str, value: object, among: type[StrEnum]) -> InvalidArgumentError:
    """Return the error for a value that is not in an enumeration; it lists the members."""
    known = ", ".join(repr(member.value) for member in among)
    return InvalidArgumentError(f"unknown {what} {value!r}: use one of {known}")
