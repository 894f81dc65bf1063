"""Versions of a job for real Flink, and what Flink does with the state of an older version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statestore.errors import StorageError
from tests.servers.flink_server import FlinkServer

__all__ = ["BACKENDS", "Pair", "RealFlink", "Version"]

BACKENDS = ("hashmap", "rocksdb")
EVENTS, MORE_EVENTS = "12", "13"
_SOURCE = """package job;

import golden.Evolved;
import java.util.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.types.*;

public class V implements golden.Version {{
{classes}
    public void build(Evolved job) {{
{body}
    }}
}}
"""


@dataclass(frozen=True)
class Version:
    """A version of a job: the classes of its types, and the Java that adds its operators.

    ``words`` are further words of its steps, such as ``max``.
    """

    body: str
    classes: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    flink: str = "2.3.0"

    @property
    def source(self) -> str:
        """The Java source of the version."""
        return _SOURCE.format(classes=self.classes, body=self.body)

    @property
    def digest(self) -> str:
        """What identifies the version."""
        text = f"{self.source}{sorted(self.words.items())}{self.flink}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Pair:
    """An old and a new version, and the worst verdict about the state of the old one."""

    name: str
    old: Version
    new: Version
    verdict: str


@dataclass
class RealFlink:
    """Runs versions in servers of some versions of Flink; each savepoint is taken once."""

    servers: Mapping[str, FlinkServer]
    folder: Path
    _savepoints: dict[tuple[str, str], Path] = field(default_factory=dict)
    _found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _jars: dict[str, Path] = field(default_factory=dict)

    def savepoint(self, version: Version, events: str = EVENTS) -> Path:
        """Return a savepoint of a version after some events."""
        key = version.digest, events
        if key not in self._savepoints:
            to = self.folder / f"{version.digest}-{events}"
            step = {"do": "savepoint", "to": str(to), "events": events, "format": "CANONICAL"}
            written = self._run(version, step)
            assert written is not None, "a savepoint was asked for"
            self._savepoints[key] = Path(written)
        return self._savepoints[key]

    def restart(self, pair: Pair, backend: str) -> str:
        """Start the new version with the state of the old one; return what happens.

        It also takes a savepoint, whose state is compared: the hashmap backend converts values
        only when it writes them. The answer is ``complete``, ``incomplete: …`` or ``refused: …``.
        """
        step = {"do": "savepoint", "from": str(self.savepoint(pair.old)), "events": MORE_EVENTS}
        step |= {"to": str(self.folder / "resaved"), "format": "CANONICAL"}
        try:
            written = self._run(pair.new, step | {"state.backend.type": backend})
            assert written is not None, "a savepoint was asked for"
            after = self._dump(pair.new, Path(written), backend)
        except StorageError as error:
            return f"refused: {_cause(str(error))}"
        if pair.old.digest not in self._found:
            self._found[pair.old.digest] = self._dump(
                pair.old, self.savepoint(pair.old), BACKENDS[0]
            )
        missing = next(_missing(self._found[pair.old.digest], after), None)
        return "complete" if missing is None else f"incomplete: {missing}"

    def _dump(self, version: Version, savepoint: Path, backend: str) -> list[dict[str, Any]]:
        rows = self.folder / "rows.jsonl"
        rows.unlink(missing_ok=True)
        step = {"do": "dump", "from": str(savepoint), "to": str(rows)}
        self._run(version, {**step, "state.backend.type": backend})
        return [json.loads(line) for line in rows.read_text("utf-8").splitlines()]

    def _run(self, version: Version, step: Mapping[str, str]) -> str | None:
        server = self.servers[version.flink]
        if version.digest not in self._jars:
            source = self.folder / version.digest / "V.java"
            source.parent.mkdir()
            source.write_text(version.source, "utf-8")
            jar = source.with_name("job.jar")
            server.run({"do": "compile", "from": str(source), "jar": str(jar)})
            self._jars[version.digest] = jar
        words = {"parallelism": "1", "jar": str(self._jars[version.digest]), **step}
        return server.run({**words, **version.words})


def _cause(text: str) -> str:
    """Return the last cause of a failure, without what differs between runs."""
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    return (causes or text.splitlines())[-1].removeprefix("Caused by: ")


def _missing(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what of the old rows the new rows lack."""
    found = {_identity(row): row for row in after}
    for row in before:
        now = found.get(_identity(row))
        if "splits" not in row and (now is None or not _has_values(row, now)):
            yield f"{row} became {now}"


def _identity(row: dict[str, Any]) -> tuple[str, ...]:
    names = ("operator", "state", "timer", "key", "namespace", "time", "mode")
    return tuple(json.dumps(row.get(name), sort_keys=True) for name in names)


def _has_values(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a row has the old value, or an operator state all old elements."""
    if "values" in old:
        return all(any(_is_part(item, now) for now in new["values"]) for item in old["values"])
    return _is_part(old.get("value"), new.get("value"))


def _is_part(old: Any, new: Any) -> bool:
    """Return whether a new value has all of an old one; it may have more fields."""
    old, new = (json.loads(one["text"]) if _is_record(one) else one for one in (old, new))
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            name in new and _is_part(part, new[name]) for name, part in old.items()
        )
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(_is_part, old, new))
    return bool(old == new)


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("kryo", "")).endswith("GenericData$Record")
