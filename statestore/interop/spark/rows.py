"""Rows of a state as the bytes that Spark's state stores keep: those of an UnsafeRow.

Spark has no function that gives a row's bytes. But its expressions can call methods of the objects
that a row holds, and a struct in a row that a plan has given is an UnsafeRow already. So two calls,
``copy()`` and ``getBytes()``, give the bytes, and no JVM code of ours is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from statestore.errors import InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["encoded"]

_PARTS: Final = ("key", "value")


def encoded(frame: DataFrame) -> DataFrame:
    """Return the rows of a state with their keys and values as bytes, as a state store has them.

    Partitions, and the order of rows in them, stay. Number, order and types of the fields decide
    the bytes; their names, and whether they may be null, do not. Where Spark plans adaptively, a
    shuffle below ``frame`` runs now; everything else waits for who reads the result.

    Args:
        frame: The rows; ``key`` and ``value`` are structs. A struct that is null stays null.

    Returns:
        The other columns of ``frame``, in their order, then ``key_bytes`` and ``value_bytes``.

    Raises:
        InvalidArgumentError: There is no column ``key`` or ``value``, or there are several.
        UnsupportedTypeError: One of them is no struct.
    """
    for name in _PARTS:
        _check(frame, name)
    rows = _as_unsafe_rows(frame)
    others = [rows[_quoted(name)] for name in rows.columns if name not in _PARTS]
    bytes_of = _bytes_of(frame.sparkSession)
    return rows.select(*others, *(bytes_of(rows[name]).alias(f"{name}_bytes") for name in _PARTS))


def _check(frame: DataFrame, name: str) -> None:
    found = [field.dataType for field in frame.schema.fields if field.name == name]
    if len(found) != 1:
        columns = ", ".join(frame.columns) or "none"
        raise InvalidArgumentError(
            f"rows of a state have one column {name!r}; the columns here are: {columns}"
        )
    if not isinstance(found[0], StructType):
        text = found[0].simpleString()
        raise UnsupportedTypeError(f"the column {name!r} of a state is a struct, not {text}")


def _as_unsafe_rows(frame: DataFrame) -> DataFrame:
    """Return ``frame`` with its plan replaced by the rows that it gives; nothing is stored.

    Rows that leave a plan are UnsafeRows, and so are the structs in them. Without this border
    Spark would compute the bytes further down, where a struct may be any other kind of row.
    """
    session: Any = frame.sparkSession
    rows, schema = frame._jdf.queryExecution().toRdd(), frame._jdf.schema()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, schema, False), session)


def _bytes_of(session: Any) -> Callable[[Column], Column]:
    """Return what turns a column of UnsafeRows into their bytes."""
    jvm = session._jvm
    expressions, types = (
        jvm.org.apache.spark.sql.catalyst.expressions,
        jvm.org.apache.spark.sql.types,
    )
    invoke, columns = expressions.objects.Invoke, jvm.org.apache.spark.sql.classic.ExpressionUtils
    unsafe_row = types.ObjectType(expressions.UnsafeRow(0).getClass())
    binary = _scala_object(types, "BinaryType")
    nothing = _scala_object(jvm.scala.collection.immutable, "Nil")

    def call(target: Any, method: str, returned: Any) -> Any:
        # No arguments, nor types of any; null of null, and of nothing else; the same every time.
        return invoke(target, method, returned, nothing, nothing, True, False, True)

    def bytes_of(struct: Column) -> Column:
        # A copy, as the row is a window into the row around it. It also changes the type: what
        # Spark calls a struct has no getBytes(), an UnsafeRow has.
        copied = call(columns.expression(struct._jc), "copy", unsafe_row)
        return Column(columns.column(call(copied, "getBytes", binary)))

    return bytes_of


def _scala_object(package: Any, name: str) -> Any:
    """Return Scala's ``object`` of this name, of a package that py4j gave."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
