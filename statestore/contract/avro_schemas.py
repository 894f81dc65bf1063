"""Whether values of one Avro schema can be read with another one.

The rules are those of Avro's ``SchemaCompatibility``, which ``AvroSerializerSnapshot`` of Flink
asks. It does not ask what a reader skips: fields of the writer that the reader lacks, and symbols
that the reader replaces by its default. Here they are reasons.

Nor does it ask about generic records. Flink reads them with the old schema alone, and writes the
fields of that record by their positions in the new one (``GenericDatumWriter``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statestore.contract.model import AS_IS, Fit, Level, fit_of, worst

__all__ = ["resolve_schemas"]

Schema = Mapping[str, Any]
"""A schema: ``type``, and the members of that type. A named type has its full name."""

_PROMOTED = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
"""For each type the others that its reader reads."""

_TEXTS = ("bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_COMPARED = ("type", "items", "values", "symbols", "size", "fields", "logicalType", "branches")


def resolve_schemas(old: str, new: str, path: str, *, is_generic: bool) -> Fit:
    """Return how values that were written with a schema fit another schema.

    Args:
        old: The writer's schema, as JSON.
        new: The reader's schema, as JSON.
        path: What has the values, for the reasons.
        is_generic: Whether the values are generic records, without a class of their own.
    """
    try:
        writer, reader = (_parse_schema(json.loads(text), "", {}) for text in (old, new))
        fit = _Resolution(is_generic).resolve(reader, writer, path)
        is_equal = _is_equal(writer, reader, set())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if old == new:
            return AS_IS
        return fit_of(Level.UNKNOWN, f"{path}: a schema of Avro is not supported ({error})")
    if fit.level == Level.AS_IS and not is_equal:
        return fit_of(Level.MIGRATION, f"{path}: the new schema of Avro reads the old one")
    return fit


def _parse_schema(schema: Any, namespace: str, named: dict[str, Schema]) -> Schema:
    """Return a schema in which each reference is the type itself. ValueError for an unknown one."""
    if isinstance(schema, list):
        return {
            "type": "union",
            "branches": [_parse_schema(part, namespace, named) for part in schema],
        }
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        return named.get(full) or named.get(schema) or _primitive(schema)
    if not isinstance(schema["type"], str) or schema["type"] in named:
        return _parse_schema(schema["type"], namespace, named)
    parsed: dict[str, Any] = {
        name: schema[name]
        for name in ("type", "symbols", "size", "default", "logicalType")
        if name in schema
    }
    kind = schema["type"]
    if kind in _NAMED:
        own = schema.get("namespace", namespace)
        full = schema["name"] if "." in schema["name"] or not own else f"{own}.{schema['name']}"
        inner = full.rpartition(".")[0]
        parsed["name"] = full
        parsed["aliases"] = [
            alias if "." in alias or not inner else f"{inner}.{alias}"
            for alias in schema.get("aliases", ())
        ]
        named[full] = parsed
        parsed["fields"] = [
            {**part, "type": _parse_schema(part["type"], inner, named)}
            for part in schema.get("fields", ())
        ]
    for member in ("items", "values"):
        if member in schema:
            parsed[member] = _parse_schema(schema[member], namespace, named)
    return parsed


def _primitive(name: str) -> Schema:
    if name not in ("null", "boolean", "int", "long", "float", "double", "bytes", "string"):
        raise ValueError(f"it refers to {name!r}, which is not defined before")
    return {"type": name}


def _is_equal(writer: Any, reader: Any, seen: set[tuple[int, int]]) -> bool:
    """Return whether two schemas are equal, as ``Schema.equals``: documentation does not count."""
    if isinstance(writer, list) and isinstance(reader, list):
        return len(writer) == len(reader) and all(
            _is_equal(was, now, seen) for was, now in zip(writer, reader, strict=True)
        )
    if not isinstance(writer, dict) or not isinstance(reader, dict):
        return bool(writer == reader)
    if (id(writer), id(reader)) in seen:
        return True
    seen.add((id(writer), id(reader)))
    members = (*_COMPARED, "name", "default", "order")
    return all(_is_equal(writer.get(each), reader.get(each), seen) for each in members)


@dataclass
class _Resolution:
    """The pairs of schemas that were compared, because a schema can contain itself."""

    is_generic: bool
    known: dict[tuple[int, int], Fit] = field(default_factory=dict)

    def resolve(self, reader: Schema, writer: Schema, path: str) -> Fit:
        """Return how values of ``writer`` fit ``reader``."""
        pair = id(reader), id(writer)
        if pair not in self.known:
            self.known[pair] = AS_IS  # fits unless something below does not
            self.known[pair] = worst(self._parts(reader, writer, path))
        return self.known[pair]

    def _parts(self, reader: Schema, writer: Schema, path: str) -> Iterator[Fit]:
        kind = reader["type"]
        if writer["type"] == "union":
            for branch in writer["branches"]:
                yield self.resolve(reader, branch, path)
        elif kind == "union":
            yield self._best_branch(reader["branches"], writer, path)
        elif kind != writer["type"]:
            promoted = () if self.is_generic and kind in _TEXTS else _PROMOTED.get(kind, ())
            if writer["type"] not in promoted:
                yield _misfit(path, f"Avro cannot read {_title(writer)} as {_title(reader)}")
        elif kind in ("array", "map"):
            member = "items" if kind == "array" else "values"
            yield self.resolve(reader[member], writer[member], f"{path}.{member}")
        elif kind in _NAMED:
            yield from self._named(reader, writer, path)

    def _best_branch(self, branches: Sequence[Schema], writer: Schema, path: str) -> Fit:
        fits = [self.resolve(branch, writer, path) for branch in branches]
        best = min(fits, key=lambda fit: fit.level, default=AS_IS)
        if not fits or best.level == Level.INCOMPATIBLE:
            return _misfit(path, f"the union lacks {_title(writer)}")
        return best

    def _named(self, reader: Schema, writer: Schema, path: str) -> Iterator[Fit]:
        if _short(reader) != _short(writer) and writer["name"] not in reader["aliases"]:
            yield _misfit(path, f"{writer['name']} is {reader['name']}, which has no such alias")
        if reader["type"] == "fixed" and reader["size"] != writer["size"]:
            yield _misfit(path, f"the size was {writer['size']} and is {reader['size']}")
        if reader["type"] == "enum":
            yield from _symbols(reader, writer, path, may_default=not self.is_generic)
        if self.is_generic and _field_names(reader) != _field_names(writer):
            yield _misfit(
                path,
                "Flink writes generic records with the new schema by the positions of their old "
                "fields; use a specific record, or keep the fields and their order",
            )
        yield from self._fields(reader["fields"], writer["fields"], path)

    def _fields(self, readers: Sequence[Any], writers: Sequence[Any], path: str) -> Iterator[Fit]:
        by_name = {each["name"]: each for each in writers}
        used: set[str] = set()
        for each in readers:
            name = each["name"]
            names = [old for old in (name, *each.get("aliases", ())) if old in by_name]
            if len(names) > 1:
                yield _misfit(path, f"field {name!r} has several old fields: {', '.join(names)}")
            elif names:
                used.add(names[0])
                yield self.resolve(each["type"], by_name[names[0]]["type"], f"{path}.{name}")
            elif "default" not in each:
                yield _misfit(path, f"the new field {name!r} has no default in the schema")
            else:
                yield fit_of(Level.MIGRATION, f"{path}: the new field {name!r} gets its default")
        for name in by_name:
            if name not in used:
                yield fit_of(
                    Level.DROPS, f"{path}: the new schema has no field {name!r}: its values go"
                )


def _symbols(reader: Schema, writer: Schema, path: str, *, may_default: bool) -> Iterator[Fit]:
    missing = ", ".join(name for name in writer["symbols"] if name not in reader["symbols"])
    if missing and may_default and reader.get("default") in reader["symbols"]:
        default = reader["default"]
        yield fit_of(Level.DROPS, f"{path}: the symbols {missing} are read as {default}")
    elif missing:
        yield _misfit(path, f"the enum lacks the symbols {missing}")


def _field_names(schema: Schema) -> list[str]:
    return [each["name"] for each in schema["fields"]]


def _short(schema: Schema) -> str:
    return str(schema["name"]).rpartition(".")[2]


def _title(schema: Schema) -> str:
    return str(schema.get("name", schema["type"]))


def _misfit(path: str, reason: str) -> Fit:
    return fit_of(Level.INCOMPATIBLE, f"{path}: {reason}")
