"""DuckDB as this project uses it: sandboxed, with batches that it reads correctly, and its errors.

:class:`QueryWatch` stops a query after a time limit, or when another thread cancels it.

A statement can only access its registered views: no files, no URLs, no variables of the program. It
loads no extensions. It writes only what DuckDB itself writes to its own database.
"""

from __future__ import annotations

import importlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from statestore.display import duration
from statestore.errors import InvalidArgumentError, QueryStoppedError
from statestore.extras import needs_extra

T = TypeVar("T")

_POLL_SECONDS = 0.05
_SETTINGS = (
    # A time with a zone is a point in time: it is read and shown in UTC, whatever the host's zone.
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

MOST_RESULT_LEVELS = 60
"""The most nested levels of a column of an answer; Arrow imports at most 62 from DuckDB."""

_QUOTED = 76
"""The width of a quoted line of a statement."""

_CUT = "..."
_NESTED = ("struct", "tuple", "map", "list", "array")
# The ids of types that DuckDB exports to Arrow without changing values.
_EXACT_IN_ARROW = frozenset(
    {
        *("boolean", "float", "double", "decimal", "varchar", "blob", "uuid", "enum", "null"),
        *("tinyint", "smallint", "integer", "bigint", "hugeint"),
        *("utinyint", "usmallint", "uinteger", "ubigint"),
        *("date", "time", "time_ns", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"),
        *("timestamp with time zone", "timestamptz_ns"),
    }
)


def duckdb() -> ModuleType:
    """Return the library; MissingDependencyError if it is not installed."""
    with needs_extra("query", "SQL"):
        return importlib.import_module("duckdb")


def is_select(library: ModuleType, connection: Any, sql: str) -> bool:
    """Return whether a text is one SELECT statement. Raises DuckDB's error if it is not SQL."""
    statements = connection.extract_statements(sql)
    return len(statements) == 1 and statements[0].type == library.StatementType.SELECT


def sandbox(connection: Any) -> None:
    """Sandbox a connection after its views are registered."""
    # In a notebook without ipywidgets there is no progress bar, and DuckDB refuses to disable it.
    [(is_on,)] = connection.sql("SELECT current_setting('enable_progress_bar')").fetchall()
    if is_on:
        connection.execute("SET enable_progress_bar = false")
    for setting in _SETTINGS:
        connection.execute(setting)


def copy_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches whose arrays, at every level, start at the beginning of their memory.

    DuckDB ignores the offset of a nested struct, or refuses it. So sliced arrays are copied, and
    all other arrays are passed on without a copy.
    """
    for batch in batches:
        columns = [
            _copy_array(column) if _is_sliced(column) else column for column in batch.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def with_arrow_types(relation: Any) -> Any:
    """Return a relation whose types Arrow represents exactly; other types are cast to VARCHAR.

    Without the cast DuckDB changes values: the largest UHUGEINT becomes -1, TIMETZ loses its zone,
    a long INTERVAL overflows, and BIT becomes bytes in DuckDB's own encoding.

    Raises InvalidArgumentError for a column with more nested levels than Arrow can import.
    """
    for name, duck_type in zip(relation.columns, relation.types, strict=True):
        _refuse_too_deep(name, duck_type)
    if all(map(_is_exact_in_arrow, relation.types)):
        return relation
    columns = (
        # Columns are referenced by position, because a result may contain a name twice.
        f"#{number}{'' if _is_exact_in_arrow(duck_type) else f'::{_arrow_type(duck_type)}'} "
        f"AS {quote_identifier(name)}"
        for number, (name, duck_type) in enumerate(
            zip(relation.columns, relation.types, strict=True), 1
        )
    )
    return relation.project(", ".join(columns))


def _refuse_too_deep(column: str, duck_type: Any) -> None:
    """Refuse a type that is too deep for a recursive walk; this walk goes level by level."""
    parts = [duck_type]
    for _ in range(MOST_RESULT_LEVELS):
        parts = [inner for part in parts if part.id in _NESTED for inner in _parts_of(part)]
        if not parts:
            return
    raise InvalidArgumentError(
        f"the column {column!r} of the answer has more than {MOST_RESULT_LEVELS} nested levels; "
        "select its inner part, or cast it to VARCHAR"
    )


def _parts_of(duck_type: Any) -> list[Any]:
    children = duck_type.children[:1] if duck_type.id == "array" else duck_type.children
    return [part for _, part in children]  # of an array without its length


def _is_exact_in_arrow(duck_type: Any) -> bool:
    if duck_type.id in _NESTED:
        return all(map(_is_exact_in_arrow, _parts_of(duck_type)))
    return duck_type.id in _EXACT_IN_ARROW


def _arrow_type(duck_type: Any) -> str:
    """Return a type in SQL, with VARCHAR for types that Arrow does not represent exactly."""
    if _is_exact_in_arrow(duck_type):
        return str(duck_type)
    if duck_type.id == "struct":
        fields = (
            f"{quote_identifier(name)} {_arrow_type(field)}" for name, field in duck_type.children
        )
        return f"STRUCT({', '.join(fields)})"
    if duck_type.id == "tuple":
        return f"TUPLE({', '.join(_arrow_type(field) for _, field in duck_type.children)})"
    if duck_type.id == "map":
        return f"MAP({', '.join(_arrow_type(part) for _, part in duck_type.children)})"
    if duck_type.id in ("list", "array"):
        size = duck_type.children[1][1] if duck_type.id == "array" else ""
        return f"{_arrow_type(duck_type.children[0][1])}[{size}]"
    return "VARCHAR"


def quote_identifier(name: str) -> str:
    """Return a quoted SQL identifier."""
    return '"{}"'.format(name.replace('"', '""'))


def error_text(error: Exception) -> str:
    """Return a DuckDB error on one line, without the quoted statement."""
    text = str(error).partition("\nLINE ")[0]
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def error_place(library: ModuleType, connection: Any, sql: str, error: Exception) -> str | None:
    """Return the quoted line of a statement that an error of DuckDB is about, with its carets.

    DuckDB omits this line from the errors of relations, so the statement is explained again to get
    it. A long line is shortened, because a terminal would break it, and the carets would be below
    another word.
    """
    place = _quoted_line(str(error))
    if place is not None:
        return _shortened(*place)
    if not isinstance(error, library.Error):
        return None
    try:
        connection.execute(f"EXPLAIN\n{sql}")
    except library.Error as explained:
        place = _quoted_line(str(explained))
    if place is None:
        return None
    line, carets = place
    number, _, rest = line.removeprefix("LINE ").partition(": ")
    fewer = len(number) - len(str(int(number) - 1))
    return _shortened(f"LINE {int(number) - 1}: {rest}", carets[fewer:])


def _quoted_line(text: str) -> tuple[str, str] | None:
    lines = text.splitlines()
    for line, carets in pairwise(lines):
        if line.startswith("LINE ") and carets.strip() and not carets.strip("^ "):
            return line, carets
    return None


def _shortened(line: str, carets: str) -> str:
    """Return a quoted line and its carets, at most :data:`_QUOTED` wide.

    Both ends of a long line are cut after whole words, if possible.
    """
    if len(line) <= _QUOTED:
        return f"{line}\n{carets}"
    head, _, text = line.partition(": ")
    first, last = (place - len(head) - 2 for place in (carets.index("^"), len(carets.rstrip())))
    room = _QUOTED - len(head) - 2 - 2 * len(_CUT)
    start = max(0, min(first - room // 3, len(text) - room))
    stop = start + room
    if start and (blank := text.find(" ", start, first)) >= 0:
        start = blank + 1
    if stop < len(text) and (blank := text.rfind(" ", last, stop)) >= 0:
        stop = blank
    before = f"{head}: {_CUT if start else ''}"
    marks = "^" * (min(last, stop) - first)
    after = _CUT if stop < len(text) else ""
    return f"{before}{text[start:stop]}{after}\n{' ' * (len(before) + first - start)}{marks}"


def _is_sliced(array: pa.Array) -> bool:
    data_type = array.type
    if array.offset:
        return True
    if pa.types.is_struct(data_type):
        return any(_is_sliced(array.field(index)) for index in range(data_type.num_fields))
    if pa.types.is_map(data_type):
        return _is_sliced(array.keys) or _is_sliced(array.items)
    if pa.types.is_nested(data_type):
        return _is_sliced(array.values)
    return False


def _copy_array(array: pa.Array) -> pa.Array:
    """Return a copy of the array in its own memory: concatenation copies in Arrow."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def run_interruptibly(step: Callable[[], T], stop: Callable[[], object]) -> T:
    """Return the result of a step of DuckDB, which Ctrl-C stops.

    The step runs in another thread, because Python handles Ctrl-C only after DuckDB returns to the
    main thread.

    Args:
        step: The step.
        stop: Makes the step end. It is called until the step has ended, because DuckDB ignores an
            interrupt that arrives between two of its steps.

    Returns:
        The result.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when the step has ended. Otherwise the step's own error.
    """
    signals: list[int] = []
    with _recorded_interrupts(signals), ThreadPoolExecutor(1) as pool:
        result = pool.submit(step)
        while not result.done():
            wait([result], _POLL_SECONDS)
            if signals:
                stop()
    if signals:
        raise KeyboardInterrupt
    return result.result()


@contextmanager
def _recorded_interrupts(signals: list[int]) -> Iterator[None]:
    """Append each Ctrl-C to a list, unless the process ignores it. Other threads get no signals.

    An exception in a thread that waits for another one could leave a lock locked.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class QueryWatch:
    """Interrupts a DuckDB connection when its time limit is over or its query is cancelled.

    DuckDB ignores an interrupt that arrives between two of its steps. So a thread repeats the
    interrupt until the query has ended. The thread runs only if a limit or an event is given.
    """

    def __init__(self, time_limit_s: float | None, cancelled: threading.Event | None) -> None:
        """Start the clock."""
        self._limit_ms = 1000 * (time_limit_s or 0)
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._cancelled = cancelled
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def problem(self) -> QueryStoppedError | None:
        """The reason why the query must stop; None while it may run."""
        if self._cancelled is not None and self._cancelled.is_set():
            return QueryStoppedError(
                "the query was cancelled before its last row was read; run it again for the "
                "whole result"
            )
        if self._deadline is not None and time.monotonic() > self._deadline:
            return QueryStoppedError(
                f"the query exceeded its time limit of {duration(self._limit_ms)} and was stopped; "
                "read fewer rows, or raise the limit (setting query_time_limit)"
            )
        return None

    def watch(self, connection: Any) -> QueryWatch:
        """Watch a connection until this context ends."""
        if self._deadline is not None or self._cancelled is not None:
            self._thread = threading.Thread(
                target=self._interrupt_when_over, args=(connection,), daemon=True
            )
            self._thread.start()
        return self

    def __enter__(self) -> QueryWatch:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()  # a closed connection must not be interrupted

    def _interrupt_when_over(self, connection: Any) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            if self.problem is not None:
                connection.interrupt()
