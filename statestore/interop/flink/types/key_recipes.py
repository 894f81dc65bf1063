"""Recipes for hashes of keys that a savepoint does not contain.

``java:`` and a Java expression is the ``hashCode()`` of the job's own class, which the user gives.
``scala`` is the hash that Scala gives case classes without a ``hashCode`` of their own. A recipe is
only used after it gave the stored key group of every key.
"""

from __future__ import annotations

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.interop.flink.types.families.base import FlinkType
from statestore.interop.flink.types.families.key_hash import HashCodes
from statestore.interop.flink.types.java_hashes import java_hash_codes

SCALA = "scala"
"""The recipe of case classes, which needs no expression."""

_JAVA = "java:"


def recipe_hash_codes(recipe: str, key_type: FlinkType, column: pa.Array) -> HashCodes:
    """Return the hashes that a recipe gives.

    Args:
        recipe: the recipe, ``scala`` or ``java:31 * a.hashCode() + b``.
        key_type: the type of the keys.
        column: the keys.

    Returns:
        The hash of each key.

    Raises:
        InvalidArgumentError: if the recipe is invalid, or does not fit the keys.
        UnsupportedTypeError: for a part of the keys whose own hash cannot be computed.
    """
    if recipe == SCALA:
        return key_type.hash_codes(column)
    if recipe.startswith(_JAVA):
        return java_hash_codes(recipe.removeprefix(_JAVA), key_type, column)
    raise InvalidArgumentError(
        f"the recipe {recipe!r} is neither {SCALA!r} nor {_JAVA!r} with a Java expression, such as "
        f"{_JAVA + '31 * a.hashCode() + b'!r}"
    )
