"""Plan the keys of states that were not imported: their type in Flink, and their hash.

The store hashes a key like Flink does, because the key has the type in Flink that it is hashed as.
A key that is a class of the job has the hash of its ``hashCode()``, which only the user knows.
"""

from __future__ import annotations

import re

import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.state import KeyedState
from statestore.interop.flink.columns.declared_types import BOXES, DeclaredType
from statestore.interop.flink.columns.part import Part
from statestore.interop.flink.columns.store_types import (
    combine_columns,
    key_column,
    python_key,
    sql_key,
)
from statestore.interop.flink.exporting.export_types import column_in_errors
from statestore.interop.flink.exporting.job_types import JobTypes
from statestore.interop.flink.types.key_recipes import SCALA, recipe_hash_codes
from statestore.keys.key_types import java_type
from statestore.rows.column_types import arrow_schema

_DIGITS = re.compile(r"\(\d+,\d+\)")
_EXAMPLE = "java:31 * a.hashCode() + b"


def plan_key(state: KeyedState, types: JobTypes) -> tuple[Part, str | None]:
    """Return the key of a state, and the recipe for its hash if it is a class of the job.

    Args:
        state: the state.
        types: the declared types; receives the differences.

    Returns:
        The key and the recipe. Without a recipe, Flink has the same key groups as the store.

    Raises:
        UnsupportedTypeError: for a key that Flink cannot have, or whose hash is not known.
        InvalidArgumentError: for a recipe that is invalid or does not fit the class.
    """
    declared = types.keys.get(state.uid)
    if declared is None:
        return _plan_hashed_key(state), None
    if state.hash_scheme != "java":
        types.make_fitter(state).add_difference(
            f"its keys are hashed by the scheme {state.hash_scheme}, so no type of Java can be "
            "declared for them"
        )
        return _plan_hashed_key(state), None
    if declared.is_class:
        return _plan_class_key(state, declared, types)
    _compare_hashes(state, declared, types)
    return _plan_hashed_key(state), None


def _plan_hashed_key(state: KeyedState) -> Part:
    """Return a key as the type that the store hashes it as: a Java object or a row of Flink SQL.

    Several columns are a Java tuple. For PyFlink, the key is wrapped in a row.
    """
    types = arrow_schema(state.schema)
    if state.hash_scheme == "flink-sql":
        stored = [types.field(column).type for column in state.key]
        return sql_key(state.key, stored, state.key_types)
    keys = []
    for column, java in zip(state.key, state.key_types, strict=True):
        with column_in_errors(state, column):
            keys.append(key_column(types.field(column).type, java_type(java)))
    part = combine_columns(keys, state.key, as_tuple=True)
    return python_key(part) if state.hash_scheme == "pyflink" else part


def _compare_hashes(state: KeyedState, declared: DeclaredType, types: JobTypes) -> None:
    """Record a difference if the job's keys have another hash than the store's."""
    stored = _DIGITS.sub("", ", ".join(state.key_types))
    if len(state.key) > 1:
        stored = f"Tuple{len(state.key)}<{stored}>"
    fitter = types.make_fitter(state)
    wanted = _hashed_name(declared, str(state))
    if not declared.parts and declared.name in ("Tuple", "Row"):
        is_same = stored.startswith(declared.name)
    else:
        is_same = stored == wanted
    if not is_same:
        advice = (
            f"--key-type {state.key[0]}={wanted}"
            if len(state.key) == 1
            else "--key-type for each column, or one column that is a struct"
        )
        fitter.add_difference(
            f"its keys ({', '.join(state.key)}) are hashed as {stored}, but the job has keys of "
            f"{declared}, which Flink hashes otherwise: make it with {advice}"
        )
    elif declared.names:
        members = [member.name for member in arrow_schema(state.schema).field(state.key[0]).type]
        if members != list(declared.names):
            fitter.add_difference(
                f"the key {state.key[0]!r} has the fields {', '.join(members)}, but the job's row "
                f"has {', '.join(declared.names)}; their order decides the hash"
            )


def _hashed_name(declared: DeclaredType, subject: str) -> str:
    """Return the name of a type as the store records what a key is hashed as."""
    if declared.is_class or declared.name in ("[]", "Set", "Map", "java.util.Date"):
        raise UnsupportedTypeError(
            f"{subject}: no key can be hashed as {declared}: use a simple type, a tuple, a row, or "
            "a class with hash = in --classes FILE as the whole key"
        )
    inner = ", ".join(_hashed_name(part, subject) for part in declared.parts)
    if not inner:
        return BOXES.get(declared.name, declared.name)
    count = len(declared.parts) if declared.name == "Tuple" else ""
    return f"{declared.name}{count}<{inner}>"


def _plan_class_key(state: KeyedState, declared: DeclaredType, types: JobTypes) -> tuple[Part, str]:
    name = declared.name
    mapping = types.classes.get(name)
    if mapping is not None and mapping.described is not None and mapping.described.constants:
        raise UnsupportedTypeError(
            f"{state} has keys of the enum {name}, whose hashes differ in every Java process, so a "
            "savepoint cannot contain them"
        )
    recipe = None if mapping is None else mapping.key_hash
    if recipe is None or recipe == SCALA:
        raise UnsupportedTypeError(
            f"{state} has keys of {name}, whose hashCode() decides their key groups: add its "
            f"expression to the class, as hash = {_EXAMPLE!r} in --classes FILE (classes=)"
        )
    stored = arrow_schema(state.schema)
    part = types.make_fitter(state).fit_columns(
        declared, state.key, [stored.field(key).type for key in state.key]
    )
    if not types.differences:
        _try_recipe(recipe, part, f"the hash of {name}")
    return part, recipe


def _try_recipe(recipe: str, key: Part, subject: str) -> None:
    """Raise the error of a recipe that is invalid or does not fit, before any key is hashed."""
    nothing = pa.array([], key.flink_type.arrow_type())
    try:
        recipe_hash_codes(recipe, key.flink_type, nothing)
    except InvalidArgumentError as error:
        raise type(error)(f"{subject}: {error}") from error
