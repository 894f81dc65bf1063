"""The column names and types of a table, and how the columns of a state may change.

A type is written in Delta's schema serialization format (Delta protocol, "Schema Serialization
Format"): a name such as ``"long"``, ``"string"``, ``"decimal(10,2)"``, or a dictionary for
``struct``, ``array`` and ``map``. So Delta, Spark and delta-rs can also read a manifest's schema.

Columns can change only when all rows of the state are written, since changes must have the stored
columns. So stored rows are never converted. These rules prevent a job with new columns from losing
data by accident.

==========================  ======================================================================
change of value columns     result
==========================  ======================================================================
a new column                accepted; it may contain null
a missing column            accepted: it was omitted, or is named in ``dropped``
a wider type                accepted if :func:`widens` allows it, also inside structs, arrays and
                            maps; a struct may get more fields
a renamed column            accepted if it is in ``renamed``
a missing and a new column  refused if the new one may be the renamed missing one, until
                            ``renamed`` or ``dropped`` decides
any other type              refused
==========================  ======================================================================

The identity columns (key, namespace, entry) never change (I3). Flink does not migrate key,
namespace and map key either. Adding and removing fields is allowed as for Flink's POJOs. Wider
types follow Delta's rules; in Flink fields keep their declared types.

After a change, values of two types are compared in their common type (:func:`common_type`). A wider
type is not a difference: the integer 1 equals the double 1. A struct with an added field is equal
while that field is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statestore.errors import InvalidArgumentError, SchemaMismatchError, UnsupportedTypeError

PRIMITIVES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
_DECIMAL = re.compile(r"decimal\(([0-9]+),\s*(-?[0-9]+)\)")
MOST_DIGITS = 38
MOST_LEVELS = 100
"""The most levels of a type that can be read."""
MOST_WRITTEN_LEVELS = 32
"""The most levels of a type that can be written."""
MOST_REPEATED_LEVELS = 16
"""The most of them that can be arrays or maps."""

DataType = str | Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One column: its name, and its type in Delta's notation."""

    name: str
    type: DataType

    def to_json(self) -> dict[str, Any]:
        """Return the field in Delta's format; all stored columns are nullable."""
        return {"name": self.name, "type": self.type, "nullable": True, "metadata": {}}


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate names (case-insensitive, as in Spark) and unknown types."""
        names: dict[str, str] = {}
        for field in self.fields:
            folded = field.name.lower()
            if folded in names:
                raise InvalidArgumentError(
                    f"two columns are named {names[folded]!r} and {field.name!r}; Spark "
                    "ignores case in column names, so rename one"
                )
            if not field.name:
                raise InvalidArgumentError("a column has an empty name; give it one")
            names[folded] = field.name
            try:
                check_type(field.type, field.name)
            except (AttributeError, LookupError, TypeError) as error:
                message = f"column {field.name!r} has a type without {error}"
                raise UnsupportedTypeError(message) from error

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple([field.name for field in self.fields])

    @cached_property
    def types(self) -> Mapping[str, DataType]:
        """The type of each column, in order."""
        return {field.name: field.type for field in self.fields}

    def type_of(self, name: str) -> DataType:
        """Return the type of a column; InvalidArgumentError lists the existing columns."""
        if name not in self.types:
            columns = ", ".join(self.names)
            raise InvalidArgumentError(f"no column {name!r}; the columns are {columns}")
        return self.types[name]

    def select(self, names: Iterable[str]) -> Schema:
        """Return the schema with only these columns, in this order."""
        known = {field.name: field for field in self.fields}
        return Schema(tuple([known.get(name) or Field(name, self.type_of(name)) for name in names]))

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """Return the schema with some columns renamed, by old name."""
        return Schema(tuple(Field(names.get(f.name, f.name), f.type) for f in self.fields))

    def to_json(self) -> dict[str, Any]:
        """Return the schema in the format of Delta's ``schemaString``."""
        return {"type": "struct", "fields": [field.to_json() for field in self.fields]}

    def __str__(self) -> str:
        """Return ``name type, name type, …``."""
        return ", ".join(f"{field.name} {type_text(field.type)}" for field in self.fields)


def schema_from_json(document: Mapping[str, Any]) -> Schema:
    """Parse the result of :meth:`Schema.to_json`; KeyError or TypeError for anything else."""
    return Schema(tuple(Field(field["name"], field["type"]) for field in document["fields"]))


def check_type(data_type: DataType, column: str, levels: int = MOST_LEVELS) -> None:
    """Raise UnsupportedTypeError if a part of the type cannot be stored, or exceeds ``levels``."""
    if isinstance(data_type, str):
        if data_type not in PRIMITIVES and not _is_decimal(data_type):
            raise UnsupportedTypeError(
                f"column {column!r} has type {data_type}, which cannot be stored; cast it to "
                f"one of {', '.join(sorted(PRIMITIVES))}, decimal (at most {MOST_DIGITS} "
                "digits, with a scale from 0 to the number of digits), struct, array or map"
            )
        return
    if levels == 1:
        raise too_deep_error(column)
    children = _children(data_type)
    if data_type["type"] == "struct":
        names = [field["name"].lower() for field in data_type["fields"]]
        if not names or len(set(names)) < len(names) or not all(names):
            raise UnsupportedTypeError(
                f"column {column!r} has type {type_text(data_type)}, which cannot be stored: "
                "a struct must have fields, and their names must differ in more than case"
            )
    for child in children:
        check_type(child, column, levels - 1)


def too_deep_error(column: str) -> UnsupportedTypeError:
    """Return the error for a type with more than ``MOST_LEVELS`` levels."""
    return UnsupportedTypeError(
        f"the type of column {column!r} has more than {MOST_LEVELS} nested levels; store the inner "
        "part as JSON or as binary"
    )


def refuse_too_deep(schema: Schema, subject: str) -> None:
    """Raise UnsupportedTypeError for a type that one of the readers could not read.

    Parquet's own reader supports 98 levels, of which a list or a map takes two. delta-rs supports
    at most 40 nested structs. DuckDB's time doubles with each nesting of lists.
    """
    for field in schema.fields:
        levels, repeated = _nesting(field.type)
        if levels > MOST_WRITTEN_LEVELS or repeated > MOST_REPEATED_LEVELS:
            raise UnsupportedTypeError(
                f"the type of column {field.name!r} of {subject} has {levels} levels, "
                f"{repeated} of them arrays or maps; at most {MOST_WRITTEN_LEVELS} levels and "
                f"{MOST_REPEATED_LEVELS} arrays or maps can be stored, because some readers "
                "support no more. Store the inner part as JSON or as binary"
            )


def _nesting(data_type: DataType) -> tuple[int, int]:
    """Return the number of nested levels of a type, and how many of them are arrays or maps."""
    if isinstance(data_type, str):
        return 1, 0
    inner = [_nesting(child) for child in _children(data_type)]
    own = data_type["type"] != "struct"
    return 1 + max(levels for levels, _ in inner), own + max(repeated for _, repeated in inner)


def _is_decimal(data_type: str) -> bool:
    parts = decimal_parts(data_type)
    return parts is not None and 0 <= parts[1] <= parts[0] <= MOST_DIGITS and parts[0] > 0


def decimal_parts(data_type: str) -> tuple[int, int] | None:
    """Return (precision, scale) of ``decimal(p,s)``; None for any other type."""
    match = _DECIMAL.fullmatch(data_type)
    return (int(match[1]), int(match[2])) if match else None


def names_with_nul(schema: Schema) -> tuple[str, ...]:
    """Return the names of columns, and of fields in them, that contain a NUL character.

    Readers that use Arrow's C interface, such as DuckDB and Polars, cut a name at NUL, and could
    confuse it with another column.
    """
    names = [name for field in schema.fields for name in (field.name, *_field_names(field.type))]
    return tuple(name for name in names if "\0" in name)


def _field_names(data_type: DataType) -> list[str]:
    if isinstance(data_type, str):
        return []
    names = [field["name"] for field in data_type.get("fields", ())]
    return names + [name for child in _children(data_type) for name in _field_names(child)]


def type_text(data_type: DataType) -> str:
    """Return a type in SQL notation: ``struct<a: long>``, ``array<string>``."""
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "struct":
        inner = ", ".join(f"{f['name']}: {type_text(f['type'])}" for f in data_type["fields"])
        return f"struct<{inner}>"
    return f"{data_type['type']}<{', '.join(type_text(child) for child in _children(data_type))}>"


def is_ordered(data_type: DataType) -> bool:
    """Return whether values of the type can be sorted and compared: it contains no map."""
    if isinstance(data_type, str):
        return True
    return data_type["type"] != "map" and all(map(is_ordered, _children(data_type)))


def same_type(left: DataType, right: DataType) -> bool:
    """Return whether two types are equal, ignoring nullability and metadata."""
    return left == right or json.dumps(_without_nullability(left)) == json.dumps(
        _without_nullability(right)
    )


def same_columns(left: Schema, right: Schema) -> bool:
    """Return whether two schemas have the same column names and types, in any order."""
    return set(left.names) == set(right.names) and all(
        same_type(field.type, right.type_of(field.name)) for field in left.fields
    )


def _children(data_type: Mapping[str, Any]) -> list[DataType]:
    match data_type.get("type"):
        case "struct":
            return [field["type"] for field in data_type["fields"]]
        case "array":
            return [data_type["elementType"]]
        case "map":
            return [data_type["keyType"], data_type["valueType"]]
        case other:
            raise UnsupportedTypeError(f"a column has type {other}, which cannot be stored")


def _without_nullability(data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return data_type.replace(" ", "")
    names = [field["name"] for field in data_type.get("fields", ())]
    return [
        data_type["type"],
        names,
        [_without_nullability(child) for child in _children(data_type)],
    ]


def struct_types(struct: Mapping[str, Any]) -> dict[str, DataType]:
    """Return the types of a struct's fields, by name."""
    return {field["name"]: field["type"] for field in struct["fields"]}


_INTEGERS = ("byte", "short", "integer", "long")
_WIDER = {
    **{old: set(_INTEGERS[index:]) for index, old in enumerate(_INTEGERS, 1)},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
for _name in _INTEGERS[:-1]:
    _WIDER[_name] = _WIDER[_name] | {"double"}
# The digits that a decimal needs for every value of the type.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def widens(old: DataType, new: DataType) -> bool:
    """Return whether ``new`` can represent every value of ``old``: the same type or a wider one.

    The list is Delta's (protocol, "Type Widening"): byte, short, integer, long in this order; byte,
    short and integer to double; float to double; date to timestamp_ntz; decimal(p, s) to a decimal
    with at least as many digits on both sides of the point; byte, short and integer to decimal(10 +
    k, k) and long to decimal(20 + k, k) or wider. A struct keeps its fields, in any order, and may
    get more. Fields of a struct, elements of an array and values of a map may widen; keys of a map
    may not.
    """
    if same_type(old, new):
        return True
    if isinstance(old, str) and isinstance(new, str):
        return new in _WIDER.get(old, ()) or _is_wider_decimal(old, new)
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return False
    if old["type"] == "array":
        return widens(old["elementType"], new["elementType"])
    if old["type"] == "map":
        same_keys = same_type(old["keyType"], new["keyType"])
        return same_keys and widens(old["valueType"], new["valueType"])
    fields = struct_types(new)
    return all(
        name in fields and widens(data_type, fields[name])
        for name, data_type in struct_types(old).items()
    )


def _is_wider_decimal(old: str, new: str) -> bool:
    wider, narrower = decimal_parts(new), decimal_parts(old)
    if wider is None:
        return False
    before_point = wider[0] - wider[1]
    if narrower is None:
        return old in _DIGITS and before_point >= _DIGITS[old]
    return wider[1] >= narrower[1] and before_point >= narrower[0] - narrower[1]


def changed_columns(
    stored: Schema,
    now: Schema,
    *,
    subject: str,
    fixed: Collection[str],
    renamed: Mapping[str, str],
    dropped: Collection[str],
) -> Schema:
    """Return the columns to store from now on: existing ones in their order, then new ones.

    ``subject`` names the state in messages. ``fixed`` are the columns that never change.
    ``renamed`` has the new name of each old column. A name in ``renamed`` or ``dropped`` whose
    change is already stored has no effect, so a job may keep it. Raises SchemaMismatchError with
    both schemas for a change that this module refuses, and InvalidArgumentError for a mapping that
    does not match the schemas.
    """
    change = _Change(stored, now, subject)
    names = change.names(renamed, dropped, fixed)
    fields, problems = [], []
    for field in stored.fields:
        name = names.get(field.name, field.name)
        if name not in now.types:
            if field.name in fixed:
                problems.append(f"{field.name!r} is one of the identity columns, and is missing")
            continue
        data_type = now.type_of(name)
        if field.name in fixed and not same_type(field.type, data_type):
            problems.append(
                f"the type of {field.name!r} cannot change because it is an identity column"
            )
        elif not widens(field.type, data_type):
            problems.append(
                f"{name!r} was stored as {type_text(field.type)}, which cannot be widened to "
                f"{type_text(data_type)}"
            )
        fields.append(Field(name, data_type))
    if problems:
        raise change.refusal(", and ".join(problems))
    kept = {field.name for field in fields}
    added = tuple([field for field in now.fields if field.name not in kept])
    gone = [field for field in stored.fields if names.get(field.name, field.name) not in kept]
    change.refuse_guess([field for field in gone if field.name not in dropped], added)
    columns = (*fields, *added)
    return stored if columns == stored.fields else Schema(columns)


class _Change:
    """The two schemas of a change, and its errors."""

    def __init__(self, stored: Schema, now: Schema, subject: str) -> None:
        self._stored, self._now, self._subject = stored, now, subject

    def names(
        self, renamed: Mapping[str, str], dropped: Collection[str], fixed: Collection[str]
    ) -> dict[str, str]:
        """Return the new names of the stored columns that are not renamed yet."""
        stored, now = self._stored.types, self._now.types
        for name in dropped:
            if name in now:
                raise self._change_error(f"dropped names {name!r}, but the rows still have it")
        for old, new in renamed.items():
            if old in fixed or new in fixed:
                problem = "identity columns cannot be renamed"
            elif new not in now:
                problem = f"the rows have no column {new!r}"
            elif old not in stored and new not in stored:
                problem = f"the stored state has no column {old!r}"
            elif old in stored and old in dropped:
                problem = f"dropped also names {old!r}"
            elif old in stored and old in now and new not in stored:
                problem = f"the rows still have the column {old!r}"
            elif old in stored and old not in now and new in stored:
                problem = f"the stored state already has a column {new!r}"
            elif list(renamed.values()).count(new) > 1:
                problem = f"two columns would be named {new!r}"
            else:
                continue
            raise self._change_error(f"renamed={{{old!r}: {new!r}}} is not possible: {problem}")
        return {old: new for old, new in renamed.items() if old in stored and new not in stored}

    def refuse_guess(self, gone: list[Field], added: tuple[Field, ...]) -> None:
        """Raise SchemaMismatchError if a missing column may be a renamed new column."""
        for old in gone:
            for new in added:
                if widens(old.type, new.type):
                    raise self.refusal(
                        (
                            f"{old.name!r} is missing and {new.name!r} is new. Pass "
                            f"renamed={{{old.name!r}: {new.name!r}}} if it is the "
                            f"same column, or dropped=[{old.name!r}] if it is not"
                        ),
                        advice="",
                    )

    def refusal(
        self, reason: str, advice: str = "; keep the columns and types, or use a new state name"
    ) -> SchemaMismatchError:
        return SchemaMismatchError(f"{self._both_types()}: {reason}{advice}")

    def _change_error(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{reason}: {self._both_types()}")

    def _both_types(self) -> str:
        return (
            f"{self._subject} was stored with the columns ({self._stored}) and now has "
            f"({self._now})"
        )


_HASHED_ALIKE = ({"byte", "short", "integer", "long"}, {"float", "double"})


def common_columns(own: Schema, other: Schema) -> Schema:
    """Return the columns that both schemas have, in the order of ``own``.

    A column has the type that represents the values of both schemas. If there is no such type, it
    keeps its type in ``own``.
    """
    fields = []
    for field in own.fields:
        if field.name in other.types:
            common = common_type(field.type, other.type_of(field.name))
            fields.append(field if common is None else Field(field.name, common))
    return Schema(tuple(fields))


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the narrowest type that represents every value of both types; None without one.

    :func:`widens` defines which types are wider.
    """
    for narrower, wider in ((left, right), (right, left)):
        if widens(narrower, wider):
            return wider
    if isinstance(left, str) or isinstance(right, str):
        return _common_decimal(left, right)
    if left["type"] != right["type"]:
        return None
    if left["type"] == "struct":
        return _common_struct(left, right)
    inner = "elementType" if left["type"] == "array" else "valueType"
    if inner == "valueType" and not same_type(left["keyType"], right["keyType"]):
        return None
    common = common_type(left[inner], right[inner])
    return None if common is None else {**left, inner: common}


def _common_decimal(left: DataType, right: DataType) -> DataType | None:
    parts = [
        decimal_parts(data_type) if isinstance(data_type, str) else None
        for data_type in (left, right)
    ]
    known = [part for part in parts if part is not None]
    if len(known) < 2:
        return None
    scale = max(scale for _, scale in known)
    digits = max(precision - scale for precision, scale in known) + scale
    return f"decimal({digits},{scale})" if digits <= MOST_DIGITS else None


def _common_struct(left: Mapping[str, Any], right: Mapping[str, Any]) -> DataType | None:
    own, others = struct_types(left), struct_types(right)
    types = own | others
    for name in own.keys() & others.keys():
        common = common_type(own[name], others[name])
        if common is None:
            return None
        types[name] = common
    if len({name.lower() for name in types}) < len(types):  # a struct cannot have such fields
        return None
    fields = [Field(name, data_type).to_json() for name, data_type in types.items()]
    return {"type": "struct", "fields": fields}


def digests_compare(left: Schema, right: Schema) -> bool:
    """Return whether equal digests of rows mean equal rows.

    That requires the same columns, and types whose equal values have equal hashes and whose
    different values have different hashes.
    """
    return set(left.names) == set(right.names) and all(
        _have_same_hash(field.type, right.type_of(field.name)) for field in left.fields
    )


def _have_same_hash(left: DataType, right: DataType) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        left_parts, right_parts = decimal_parts(left), decimal_parts(right)
        if left_parts is not None and right_parts is not None:
            return left_parts[1] == right_parts[1]
        return left == right or any({left, right} <= kinds for kinds in _HASHED_ALIKE)
    if isinstance(left, str) or isinstance(right, str) or left["type"] != right["type"]:
        return False
    if left["type"] == "struct":
        own, others = struct_types(left), struct_types(right)
        return own.keys() == others.keys() and all(
            _have_same_hash(own[name], others[name]) for name in own
        )
    inner = ("elementType",) if left["type"] == "array" else ("keyType", "valueType")
    return all(_have_same_hash(left[part], right[part]) for part in inner)
