"""Pairs of statements of Flink SQL: what changes, and the verdict about the old state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statestore.interop.flink import open_savepoint
from tests.servers.flink import Flink

__all__ = ["SQL_PAIRS", "SqlPair", "SqlVersion", "run_sql_pairs"]

_IN_A_PROCESS = 4
_TABLES = """CREATE TABLE events (k {k}, v {v}, w BIGINT, seen AS PROCTIME()) WITH (
  'connector' = 'datagen', 'rows-per-second' = '100',
  'fields.k.kind' = 'random'{range}
);

CREATE TABLE others (k INT, x {x}) WITH (
  'connector' = 'datagen', 'rows-per-second' = '100',
  'fields.k.min' = '{least}', 'fields.k.max' = '{most}'
);

CREATE TABLE sink ({columns}) WITH ('connector' = 'blackhole');

INSERT INTO sink {query}"""


@dataclass(frozen=True)
class SqlVersion:
    """A version of a statement, and the types of the columns that it reads."""

    query: str
    columns: str
    types: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()

    def script(self, least: int) -> str:
        """Return the statements; keys begin at ``least``, so that runs have different ones."""
        types = {"k": "INT", "v": "INT", "x": "INT", **self.types}
        most = least + 8
        numbers = f",\n  'fields.k.min' = '{least}', 'fields.k.max' = '{most}'"
        return _TABLES.format(
            **types,
            range=numbers if types["k"] != "STRING" else ",\n  'fields.k.length' = '1'",
            least=least,
            most=most,
            columns=self.columns,
            query=self.query,
        )


@dataclass(frozen=True)
class SqlPair:
    """An old and a new statement, and the worst verdict about the state of the old one."""

    name: str
    old: SqlVersion
    new: SqlVersion
    verdict: str


_SUM = SqlVersion("SELECT k, SUM(v) FROM events GROUP BY k", "k INT, s INT")
_TTL = ("table.exec.state.ttl=1h",)
_LONG = {"v": "BIGINT"}
_JOIN = SqlVersion(
    "SELECT events.k, v, x FROM events JOIN others ON events.k = others.k", "k INT, v INT, x INT"
)
_FIRST = SqlVersion(
    "SELECT k, v FROM (SELECT k, v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY seen DESC) AS n "
    "FROM events) WHERE n = 1",
    "k INT, v INT",
)

SQL_PAIRS = (
    SqlPair("aggregate unchanged", _SUM, _SUM, "same"),
    SqlPair(
        "operator removed before the aggregate",
        _SUM,
        SqlVersion("SELECT k, SUM(v), MAX(w) FROM events GROUP BY k", "k INT, s INT, m BIGINT"),
        "is lost",
    ),
    SqlPair(
        "aggregated column widened",
        _SUM,
        SqlVersion(_SUM.query, "k INT, s BIGINT", _LONG),
        "does not fit",
    ),
    SqlPair(
        "grouping column of another type",
        _SUM,
        SqlVersion(_SUM.query, "k BIGINT, s INT", {"k": "BIGINT"}),
        "does not fit",
    ),
    SqlPair("ttl added", _SUM, SqlVersion(_SUM.query, _SUM.columns, {}, _TTL), "converts"),
    SqlPair("join unchanged", _JOIN, _JOIN, "same"),
    SqlPair(
        "join column widened",
        _JOIN,
        SqlVersion(_JOIN.query, "k INT, v BIGINT, x INT", _LONG),
        "does not fit",
    ),
    SqlPair("last rows unchanged", _FIRST, _FIRST, "same"),
)


def run_sql_pairs(flink: Flink, folder: Path) -> dict[str, tuple[Path, Path, str]]:
    """Run all pairs; return the old savepoint, the new plan, and what Flink does.

    The answer is ``complete``, ``incomplete`` or ``refused: …``.
    """
    found = {}
    for first in range(0, len(SQL_PAIRS), _IN_A_PROCESS):
        pairs = SQL_PAIRS[first : first + _IN_A_PROCESS]
        places = [folder / str(first + number) for number in range(len(pairs))]
        steps = [step for each in zip(pairs, places, strict=True) for step in _steps(*each)]
        said = [line.partition(" ") for line in flink.java("golden.Plans", steps).splitlines()]
        answers = [(word, rest) for word, _, rest in said if word in ("stopped", "refused")]
        for number, (pair, place) in enumerate(zip(pairs, places, strict=True)):
            old, new = answers[2 * number : 2 * number + 2]
            found[pair.name] = Path(old[1]), place / "new" / "plan.json", _answer(old, new)
    return found


def _steps(pair: SqlPair, place: Path) -> Iterator[str]:
    """Yield the steps of both versions; the new one begins with the savepoint of the old one."""
    begin = "-"
    for name, version, least in (("old", pair.old, 1), ("new", pair.new, 101)):
        folder = place / name
        folder.mkdir(parents=True)
        (folder / "script.sql").write_text(version.script(least), "utf-8")
        plan = folder / "plan.json"
        yield " ".join(("compile", str(folder / "script.sql"), str(plan), *version.settings))
        yield f"renumber {plan}"
        yield f"stop {plan} hashmap {begin} {folder}"
        begin = str(folder / "newest")


def _answer(old: tuple[str, str], new: tuple[str, str]) -> str:
    assert old[0] == "stopped", old
    if new[0] == "refused":
        return f"refused: {new[1]}"
    before, after = (_keys(path) for _, path in (old, new))
    return "complete" if before and before <= after else "incomplete"


def _keys(savepoint: str) -> set[tuple[str, str, str]]:
    """Return the keys of each state of each operator in a savepoint."""
    return {
        (operator.metadata.id, rows.state.name, str(key))
        for operator in open_savepoint(savepoint).operators
        for rows in operator.rows()
        for key in rows.key.to_pylist()
    }
