"""Schema evolution: how a state's columns may change, and in which types values are then compared.

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

from collections.abc import Collection, Mapping
from typing import Any

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import (
    MOST_DIGITS,
    DataType,
    Field,
    Schema,
    decimal_parts,
    same_type,
    struct_types,
    type_text,
)

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
        if name not in now.names:
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
    kept = [field.name for field in fields]
    added = tuple(field for field in now.fields if field.name not in kept)
    gone = [field for field in stored.fields if names.get(field.name, field.name) not in kept]
    change.refuse_guess([field for field in gone if field.name not in dropped], added)
    return Schema((*fields, *added))


class _Change:
    """The two schemas of a change, and its errors."""

    def __init__(self, stored: Schema, now: Schema, subject: str) -> None:
        self._stored, self._now, self._subject = stored, now, subject

    def names(
        self, renamed: Mapping[str, str], dropped: Collection[str], fixed: Collection[str]
    ) -> dict[str, str]:
        """Return the new names of the stored columns that are not renamed yet."""
        stored, now = self._stored.names, self._now.names
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
        if field.name in other.names:
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
