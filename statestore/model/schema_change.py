"""How the columns of a state may change from one checkpoint to the next.

Every checkpoint is full, so no stored row is ever converted: what matters is that a job which goes
on with the new columns loses nothing by accident.

==========================  ======================================================================
a change of value columns   what becomes of it
==========================  ======================================================================
a new one                   taken; it may hold null
one less                    taken: it was left out, or is named in ``dropped``
a wider type                taken, by the list of :func:`widens`; inside structs, arrays and maps
                            too, and a struct may get more fields
another name                taken when ``renamed`` says so
one less and a new one      refused where the new one may be the old one under another name, until
                            ``renamed`` or ``dropped`` says which
any other type              refused
==========================  ======================================================================

The columns that tell rows apart (key, namespace, entry) never change (I3), as in Flink, where key,
namespace and map key take no migration. Flink's POJOs gain and lose fields alike; a wider type is
Delta's rule, not Flink's, whose fields keep their declared types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.model.schema import DataType, Field, Schema, decimal_parts, same_type, type_text

__all__ = ["changed_columns", "widens"]

_INTEGERS = ("byte", "short", "integer", "long")
_WIDER = {
    **{old: set(_INTEGERS[at:]) for at, old in enumerate(_INTEGERS, 1)},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
for _name in _INTEGERS[:-1]:
    _WIDER[_name] = _WIDER[_name] | {"double"}
# Digits that every value of the type needs, so that a decimal holds it.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def widens(old: DataType, new: DataType) -> bool:
    """Return whether every value of ``old`` is one of ``new``, unchanged: the same type or a wider
    one.

    The list is Delta's (protocol, "Type Widening"): byte, short, integer, long in this order; byte,
    short and integer to double; float to double; date to timestamp_ntz; decimal(p, s) to one with
    as many digits or more on either side of the point; byte, short and integer to decimal(10 + k,
    k) and long to decimal(20 + k, k) or wider. A struct keeps its fields, in any order, and may get
    more; they may widen, and so may the elements of an array and the values of a map, not its keys.
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
    fields = _types_of(new)
    return all(
        name in fields and widens(kind, fields[name]) for name, kind in _types_of(old).items()
    )


def _types_of(struct: Mapping[str, Any]) -> dict[str, DataType]:
    return {field["name"]: field["type"] for field in struct["fields"]}


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
    """Return the columns to store from now on: those that stay where they were, new ones behind.

    ``subject`` names the state in messages, ``fixed`` its columns that never change, ``renamed``
    the new name of each old one. A name in ``renamed`` or ``dropped`` whose change was stored
    before says nothing any more, so a job may leave it in place. Raises SchemaMismatchError with
    both schemas for a change that the module refuses, and InvalidArgumentError for a mapping that
    fits neither.
    """
    change = _Change(stored, now, subject)
    names = change.names(renamed, dropped, fixed)
    fields = []
    for field in stored.fields:
        name = names.get(field.name, field.name)
        if name not in now.names:
            if field.name in fixed:
                raise change.refused(f"{field.name!r} is one of the columns that tell rows apart")
            continue
        kind = now.type_of(name)
        if field.name in fixed and not same_type(field.type, kind):
            raise change.refused(f"{field.name!r}, which tells rows apart, keeps its type")
        if not widens(field.type, kind):
            raise change.refused(
                f"{name!r} was {type_text(field.type)}, which is not widened to {type_text(kind)}"
            )
        fields.append(Field(name, kind))
    kept = [field.name for field in fields]
    added = tuple(field for field in now.fields if field.name not in kept)
    gone = [field for field in stored.fields if names.get(field.name, field.name) not in kept]
    change.refuse_guess([field for field in gone if field.name not in dropped], added)
    return Schema((*fields, *added))


class _Change:
    """The two schemas of a change, for what is wrong with it."""

    def __init__(self, stored: Schema, now: Schema, subject: str) -> None:
        self._stored, self._now, self._subject = stored, now, subject

    def names(
        self, renamed: Mapping[str, str], dropped: Collection[str], fixed: Collection[str]
    ) -> dict[str, str]:
        """Return the new names of those stored columns that do not have them yet."""
        stored, now = self._stored.names, self._now.names
        for name in dropped:
            if name in now:
                raise self._wrong(f"dropped names {name!r}, which the rows have")
        for old, new in renamed.items():
            if old in fixed or new in fixed:
                problem = "the columns that tell rows apart keep their names"
            elif new not in now:
                problem = f"the rows have no column {new!r}"
            elif old not in stored and new not in stored:
                problem = f"no column {old!r} was stored"
            elif old in stored and old in dropped:
                problem = f"dropped names {old!r} too"
            elif old in stored and old in now and new not in stored:
                problem = f"the rows have the column {old!r} still"
            elif old in stored and old not in now and new in stored:
                problem = f"a column {new!r} was stored beside it"
            elif list(renamed.values()).count(new) > 1:
                problem = f"two columns become {new!r}"
            else:
                continue
            raise self._wrong(f"renamed={{{old!r}: {new!r}}} does not fit, {problem}")
        return {old: new for old, new in renamed.items() if old in stored and new not in stored}

    def refuse_guess(self, gone: list[Field], added: tuple[Field, ...]) -> None:
        """Raise SchemaMismatchError where a column that is gone may be one that is new."""
        for old in gone:
            for new in added:
                if widens(old.type, new.type):
                    raise self.refused(
                        f"{old.name!r} is gone and {new.name!r} is new. Say renamed="
                        f"{{{old.name!r}: {new.name!r}}} if it is the same column, or "
                        f"dropped=[{old.name!r}] if it is not",
                        advice="",
                    )

    def refused(
        self, reason: str, advice: str = "; keep it, or use a new state name"
    ) -> SchemaMismatchError:
        return SchemaMismatchError(f"{self._both()}: {reason}{advice}")

    def _wrong(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{reason}: {self._both()}")

    def _both(self) -> str:
        return (
            f"{self._subject} was stored with the columns ({self._stored}), and now has "
            f"({self._now})"
        )
