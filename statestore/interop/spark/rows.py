"""Encode rows of a state as the bytes in Spark's state stores, which are UnsafeRows.

Spark has no function for the bytes of a row. But its expressions can call methods of the objects in
a row, and a struct in an evaluated row is already an UnsafeRow. So calls of ``copy()`` and
``getBytes()`` return the bytes, without additional JVM code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from statestore.errors import InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS: Final = ("key", "value")


def encode_rows(frame: DataFrame) -> DataFrame:
    """Encode the keys and values of a state's rows as the bytes of Spark's state stores.

    The partitions and the order of their rows do not change. The bytes depend on the number, order
    and types of the fields, but not on their names or nullability. With adaptive query execution, a
    shuffle below ``frame`` runs now. The rest runs when the result is read.

    Args:
        frame: The rows; ``key`` and ``value`` are structs. A struct that is null stays null.

    Returns:
        The other columns of ``frame``, in their order, then ``key_bytes`` and ``value_bytes``.

    Raises:
        InvalidArgumentError: The column ``key`` or ``value`` is missing, or exists twice.
        UnsupportedTypeError: One of them is not a struct.
    """
    for name in _PARTS:
        _check_struct(frame, name)
    rows = _as_unsafe_rows(frame)
    others = [rows[_quote_name(name)] for name in rows.columns if name not in _PARTS]
    to_bytes = _make_converter(frame.sparkSession)
    return rows.select(*others, *(to_bytes(rows[name]).alias(f"{name}_bytes") for name in _PARTS))


def _check_struct(frame: DataFrame, name: str) -> None:
    column_types = [field.dataType for field in frame.schema.fields if field.name == name]
    if len(column_types) != 1:
        columns = ", ".join(frame.columns) or "none"
        raise InvalidArgumentError(
            f"the rows of a state must have one column {name!r}; these have the columns: {columns}"
        )
    if not isinstance(column_types[0], StructType):
        text = column_types[0].simpleString()
        raise UnsupportedTypeError(f"the column {name!r} of a state must be a struct, not {text}")


def _as_unsafe_rows(frame: DataFrame) -> DataFrame:
    """Return ``frame`` with its plan replaced by an RDD of the plan's rows; nothing is stored.

    The output rows of a plan are UnsafeRows, and so are the structs in them. Without this barrier,
    Spark would compute the bytes in an earlier stage of the plan, where a struct can have another
    class.
    """
    session: Any = frame.sparkSession
    rows, schema = frame._jdf.queryExecution().toRdd(), frame._jdf.schema()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, schema, False), session)


def _make_converter(session: Any) -> Callable[[Column], Column]:
    """Return a function that converts a column of UnsafeRows to their bytes."""
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
        # No arguments and no argument types; null only for null input; deterministic.
        return invoke(target, method, returned, nothing, nothing, True, False, True)

    def to_bytes(struct: Column) -> Column:
        # The copy is necessary, because the row is a window into the row around it. It also changes
        # the type: only an UnsafeRow has getBytes(), and Spark declares a struct as InternalRow.
        copied = call(columns.expression(struct._jc), "copy", unsafe_row)
        return Column(columns.column(call(copied, "getBytes", binary)))

    return to_bytes


def _scala_object(package: Any, name: str) -> Any:
    """Return the Scala ``object`` with this name from a package of py4j."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
