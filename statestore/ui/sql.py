"""The pages for questions: SQL, the lookup of a key, the comparison of checkpoints, and the search.

The page for SQL shows the first rows of an answer. All rows can be downloaded as CSV. The search
finds a checkpoint, savepoint, operator or state by a part of its name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import quote, urlencode

from statestore.catalog.catalog import Checkpoint, CheckpointRef
from statestore.cli.arguments import key_of
from statestore.cli.drawing import when
from statestore.durations import Duration
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    StateStoreError,
)
from statestore.restore.row_files import write_result
from statestore.rows.python_values import display_values
from statestore.store import StateStore
from statestore.ui.checkpoint import time_columns
from statestore.ui.pages import PageView, fit

ROWS: Final = 1000
"""The maximum number of rows of an SQL answer."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits for the SQL on the pages.

    Attributes:
        time_limit: The longest time of a query; None for no limit.
        memory_bytes: DuckDB's memory limit for a query, in bytes.
        concurrent: The maximum number of concurrent queries.
    """

    time_limit: Duration | None
    memory_bytes: int
    concurrent: int


@dataclass(frozen=True)
class ColumnProfile:
    """A column of an answer: its nulls, distinct values, least and greatest value, and a histogram.

    Nested columns have only nulls. ``bars`` are the labels and rows of equal ranges of numbers or
    times, or of the values of a column that has few.
    """

    name: str
    type: str
    nulls: int
    distinct: int | None
    least: Any
    greatest: Any
    bars: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Profile:
    """The columns of an answer, and its number of rows."""

    rows: int
    columns: tuple[ColumnProfile, ...]


@dataclass(frozen=True)
class SqlAnswer:
    """The first rows of an answer; ``is_cut`` is true if there are more."""

    columns: tuple[tuple[str, str], ...]
    rows: Sequence[Sequence[Any]]
    is_cut: bool


def sql(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str = "",
    *,
    form_token: str,
    answer: SqlAnswer | Profile | None = None,
    problem: str = "",
    place: str = "",
) -> PageView:
    """Return the form for SQL, with the views that a query can use.

    Without a statement, it has one for the first rows of the first view.

    Args:
        store: The store.
        checkpoint: The checkpoint.
        text: The statement in the form.
        form_token: The token that the form sends with the statement.
        answer: The answer to show below the form.
        problem: Why the statement has no answer.
        place: The line of the statement that is wrong, with a caret below the place.
    """
    views = store.views(checkpoint)
    first = f"SELECT * FROM {views[0].sql} LIMIT 100" if views else ""
    facts = {
        "text": text or first,
        "is_asked": bool(text),
        "form_token": form_token,
        "left_out": checkpoint.manifest.left_out,
        "views": views,
        "answer": answer if isinstance(answer, SqlAnswer) else None,
        "profile": answer if isinstance(answer, Profile) else None,
        "problem": problem,
        "place": place,
        "most_rows": ROWS,
    }
    return PageView("SQL", "sql.html", facts, "sql", checkpoint.checkpoint_id)


def sql_answer(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> SqlAnswer:
    """Run a statement and return its first rows; raise what ``StateStore.query`` raises."""
    with _query(store, checkpoint, text, limits, cancelled) as answer:
        rows = tuple(_first_rows(answer))
        columns = tuple((field.name, str(field.type)) for field in answer.schema)
    shown = fit(rows[:ROWS])
    return SqlAnswer(columns, shown, is_cut=len(rows) > len(shown))


def sql_profile(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> Profile:
    """Run a statement and return the profile of its columns; it is computed by DuckDB.

    The statement runs twice: for the figures, and for the histograms between the least and the
    greatest value. Raises what ``StateStore.query`` raises.
    """
    with _query(store, checkpoint, text, limits, cancelled) as answer:
        fields = [*answer.schema]
    names = ", ".join(f"c{number}" for number in range(len(fields)))
    source = f"(\n{text.strip().rstrip(';')}\n) AS answer({names})"

    def first_row(figures: Sequence[str]) -> list[Any]:
        asked = f"SELECT {', '.join(figures)} FROM {source}"
        with _query(store, checkpoint, asked, limits, cancelled) as answer:
            return [*next(_first_rows(answer))]

    kinds = [_kind_of(str(field.type)) for field in fields]
    rows, *found = first_row(
        ["count(*)", *(one for n, kind in enumerate(kinds) for one in _figures(f"c{n}", kind))]
    )
    figures = [found[at : at + _FIGURES] for at in range(0, len(found), _FIGURES)]
    counted = [_histogram(f"c{n}", kind, *figures[n]) for n, kind in enumerate(kinds)]
    bars = first_row(counted) if rows else [None] * len(kinds)
    return Profile(
        rows,
        tuple(
            ColumnProfile(field.name, str(field.type), rows - n, distinct, least, greatest, shown)
            for field, kind, bar, (n, distinct, least, greatest, low, high) in zip(
                fields, kinds, bars, figures, strict=True
            )
            for shown in [_bars(kind, dict(bar or ()), low, high)]
        ),
    )


_FIGURES: Final = 6
_BARS: Final = 12


def _kind_of(data_type: str) -> str:
    """Return ``number``, ``time``, ``nested`` or ``other`` for the text of an Arrow type."""
    kinds = {
        "number": ("int", "uint", "float", "double", "halffloat", "decimal"),
        "time": ("timestamp", "date"),
        "nested": ("list", "large_list", "fixed_size_list", "struct", "map", "dense_", "sparse_"),
    }
    return next((kind for kind, starts in kinds.items() if data_type.startswith(starts)), "other")


def _figures(column: str, kind: str) -> list[str]:
    """Return what :func:`sql_profile` selects of a column; the last two are bounds of bars."""
    if kind == "nested":
        return [f"count({column})", *["NULL"] * (_FIGURES - 1)]
    place = _number_of(column, kind)
    bounds = [f"min({place})", f"max({place})"] if place else ["NULL", "NULL"]
    distinct = f"count(DISTINCT {column})"
    return [f"count({column})", distinct, f"min({column})", f"max({column})", *bounds]


def _number_of(column: str, kind: str) -> str:
    """Return a column as a finite number or null; an empty text if it is neither."""
    number = {"number": f"{column}::DOUBLE", "time": f"epoch({column})"}.get(kind)
    finite = f"{column}::DOUBLE" if kind == "number" else column
    return f"CASE WHEN isfinite({finite}) THEN {number} END" if number else ""


def _histogram(
    column: str, kind: str, n: int, distinct: int, least: Any, most: Any, low: Any, high: Any
) -> str:
    """Return a map from a bar to its rows, or NULL if a column has no histogram."""
    if low is not None and low < high:
        place = f"(({_number_of(column, kind)}) - {low!r}) / {(high - low)!r} * {_BARS}"
        return f"histogram(least(floor({place}), {_BARS - 1})::INTEGER)"
    if kind == "other" and 1 < distinct <= _BARS:
        return f"histogram({column}::VARCHAR)"
    return "NULL"


def _bars(kind: str, rows: Mapping[Any, int], low: Any, high: Any) -> tuple[tuple[str, int], ...]:
    if kind == "other":
        return tuple((str(value), rows[value]) for value in sorted(rows))
    if not rows:
        return ()
    shown = (lambda at: when(round(1000 * at))) if kind == "time" else "{:.6g}".format
    edges = [low + (high - low) * number / _BARS for number in range(_BARS + 1)]
    return tuple(
        (f"{shown(edges[bar])} to {shown(edges[bar + 1])}", rows.get(bar, 0))
        for bar in range(_BARS)
    )


def write_sql_csv(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    target: IO[bytes],
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> None:
    """Run a statement and write all rows as CSV; raise what ``StateStore.query`` raises."""
    with _query(store, checkpoint, text, limits, cancelled) as answer:
        write_result(answer, "csv", target, 0)


def _query(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> Any:
    return store.query(
        text,
        checkpoint,
        time_limit=limits.time_limit,
        memory_limit=limits.memory_bytes,
        cancelled=cancelled,
    )


def _first_rows(answer: Any) -> Iterator[tuple[Any, ...]]:
    """Yield one row more than is shown, to detect whether there are more; read no others."""
    left = ROWS + 1
    for batch in answer:
        columns = [
            display_values(column, of_duckdb=True) for column in batch.slice(0, left).columns
        ]
        yield from zip(*columns, strict=True)
        left -= batch.num_rows
        if left <= 0:
            return


_KEY_ROWS: Final = 50
_GROUPS: Final = 100
_LISTED: Final = 1000


def key(store: StateStore, checkpoint: Checkpoint, text: str = "") -> PageView:
    """Return the rows of a key in all states; without a key, the form to enter one."""
    facts: dict[str, Any] = {
        "text": text,
        "found": None,
        "left_out": checkpoint.manifest.left_out,
        "most": _KEY_ROWS,
        "time_columns": time_columns,
    }
    problem = None
    if text:
        try:
            facts["found"] = store.inspect.key(key_of(text), checkpoint, times_as_text=True)
        except InvalidArgumentError as error:
            problem = error
    return PageView("A key", "key.html", facts, "key", checkpoint.checkpoint_id, problem)


def history(store: StateStore, number: int, text: str, uid: str, name: str) -> PageView:
    """Return the values of a key in a state at each kept checkpoint, newest first.

    ``number`` is the checkpoint to which the page's links lead.
    """
    values = store.inspect.history(key_of(text), uid, name, times_as_text=True)
    facts = {"text": text, "uid": uid, "name": name, "history": values[::-1]}
    return PageView("History of a key", "history.html", facts, "key", number)


def compare(store: StateStore, a: str = "", b: str = "") -> PageView:
    """Return the differences between two checkpoints; without two, the form to choose them.

    If they cannot be compared, the view has the form and the error.
    """
    ids = store.checkpoints()
    facts: dict[str, Any] = {"a": a, "b": b, "found": None}
    facts["choices"] = _choices(store, ids, a, b)
    problem = None
    if a and b:
        try:
            facts |= {"found": store.inspect.diff(a, b), "groups": _GROUPS}
        except StateStoreError as error:
            problem = error
    elif len(ids) > 1:
        facts |= {"a": a or str(ids[-2]), "b": b or str(ids[-1])}
    return PageView("Compare", "compare.html", facts, tab="compare", error=problem)


def _choices(
    store: StateStore, ids: Sequence[int], *chosen: str
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the options of a selection of checkpoints, in groups, always with the chosen ones."""
    listed = [str(number) for number in ids[-_LISTED:][::-1]]
    savepoints = store.maintenance.savepoints()
    names = {savepoint.name for savepoint in savepoints}
    others = [value for value in dict.fromkeys(chosen) if value and value not in {*listed, *names}]
    held: dict[str, list[str]] = {}
    for savepoint in savepoints:
        held.setdefault(str(savepoint.checkpoint_id), []).append(savepoint.name)
    groups = [
        ("others", [(value, value) for value in others]),
        ("checkpoints", [(value, _named(value, held.get(value, []))) for value in listed]),
        ("savepoints", [(one.name, f"{one.name} ({one.checkpoint_id})") for one in savepoints]),
    ]
    return [(title, options) for title, options in groups if options]


def _named(number: str, savepoints: Sequence[str]) -> str:
    return f"{number} ({', '.join(savepoints)})" if savepoints else number


_MOST: Final = 50


@dataclass(frozen=True)
class Match:
    """A found object: its kind, its name, and the URL of its page."""

    kind: str
    name: str
    url: str


def search(store: StateStore, text: str, which: CheckpointRef = "latest") -> PageView:
    """Return what contains a text: checkpoints and savepoints, and the states of a checkpoint.

    Upper and lower case are equal. Checkpoints match by the start of their id, newest first.
    """
    wanted = text.strip().casefold()
    found = [*_checkpoints(store, wanted), *_states(store, wanted, which)] if wanted else []
    facts = {"text": text, "found": found[:_MOST], "more": len(found) - _MOST}
    return PageView("Search", "search.html", facts, tab="search")


def _checkpoints(store: StateStore, wanted: str) -> list[Match]:
    ids = [str(number) for number in store.checkpoints()[::-1]]
    matching = sorted((i for i in ids if i.startswith(wanted)), key=lambda i: i != wanted)
    found = [Match("checkpoint", number, f"/checkpoint/{number}") for number in matching[:_MOST]]
    return found + [
        Match("savepoint", savepoint.name, f"/checkpoint/{quote(savepoint.name, safe='')}")
        for savepoint in store.maintenance.savepoints()
        if wanted in savepoint.name.casefold()
    ]


def _states(store: StateStore, wanted: str, which: CheckpointRef) -> list[Match]:
    """Return the operators and states that match; none if the checkpoint cannot be read."""
    try:
        manifest = store.checkpoint(which).manifest
    except (CheckpointNotFoundError, CorruptionError, FormatVersionError):
        return []
    base = f"/checkpoint/{manifest.checkpoint_id}"
    operators = [
        Match("operator", uid, f"{base}#operator-{quote(uid, safe='')}")
        for uid in manifest.uids
        if wanted in uid.casefold()
    ]
    states = []
    for entry in manifest.entries:
        own = entry.state
        if wanted in f"{own.uid}.{own.name}".casefold():
            url = f"{base}/state?{urlencode({'operator': own.uid, 'state': own.name})}"
            states.append(Match("state", f"{own.uid}.{own.name}", url))
    return operators + states
