"""Types of Flink SQL, ``LogicalType`` and its subclasses: as Java serialized them, and in Arrow.

For the types that a key can have, this module also writes the objects, with exactly the bytes that
Java writes. Each type has an Arrow type; so have times and windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import (
    JavaObject,
    Reader,
    i32,
    i64,
    read_java_object,
    utf,
)
from statestore.keys.sql import parse_sql_type


@dataclass(frozen=True, slots=True)
class SqlRoot:
    """A root of SQL types without parts: its names, and how Flink stores values of its types.

    Attributes:
        root: its name in ``LogicalTypeRoot``.
        text: its name in SQL.
        arrow: the alias of its Arrow type in a row, if it depends on nothing else.
        number: the NumPy type of its values in a binary row, if they are numbers of a fixed width.
        field: the short name of a field's serializer, if it depends on nothing else.
        java_class: the class of the type, if a key can have it.
        parameters: the numbers in its name.
    """

    root: str
    text: str
    arrow: str = ""
    number: str = ""
    field: str = ""
    java_class: str = ""
    parameters: tuple[str, ...] = ()


_LENGTH, _PRECISION = ("length",), ("precision",)
SQL_ROOTS = {
    root.root: root
    for root in (
        SqlRoot("BOOLEAN", "BOOLEAN", "bool", "", "Boolean", "BooleanType"),
        SqlRoot("TINYINT", "TINYINT", "int8", "<i1", "Byte", "TinyIntType"),
        SqlRoot("SMALLINT", "SMALLINT", "int16", "<i2", "Short", "SmallIntType"),
        SqlRoot("INTEGER", "INT", "int32", "<i4", "Integer", "IntType"),
        SqlRoot("BIGINT", "BIGINT", "int64", "<i8", "Long", "BigIntType"),
        SqlRoot("FLOAT", "FLOAT", "float", "<f4", "Float", "FloatType"),
        SqlRoot("DOUBLE", "DOUBLE", "double", "<f8", "Double", "DoubleType"),
        SqlRoot("DATE", "DATE", "date32", "<i4", "Integer", "DateType"),
        SqlRoot("DECIMAL", "DECIMAL", "", "", "", "DecimalType", ("precision", "scale")),
        SqlRoot("CHAR", "CHAR", "string", "", "StringData", "CharType", _LENGTH),
        SqlRoot("VARCHAR", "VARCHAR", "string", "", "StringData", "VarCharType", _LENGTH),
        SqlRoot("BINARY", "BINARY", "binary", "", "byte[]", "BinaryType", _LENGTH),
        SqlRoot("VARBINARY", "VARBINARY", "binary", "", "byte[]", "VarBinaryType", _LENGTH),
        SqlRoot(
            "TIME_WITHOUT_TIME_ZONE", "TIME", "time32[ms]", "<i4", "Integer", "TimeType", _PRECISION
        ),
        SqlRoot(
            "TIMESTAMP_WITHOUT_TIME_ZONE",
            "TIMESTAMP",
            java_class="TimestampType",
            parameters=_PRECISION,
        ),
        SqlRoot(
            "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
            "TIMESTAMP_LTZ",
            java_class="LocalZonedTimestampType",
            parameters=_PRECISION,
        ),
        SqlRoot("TIMESTAMP_WITH_TIME_ZONE", "TIMESTAMP WITH TIME ZONE", parameters=_PRECISION),
        SqlRoot("INTERVAL_YEAR_MONTH", "INTERVAL YEAR TO MONTH", "int32", "<i4"),
        SqlRoot("INTERVAL_DAY_TIME", "INTERVAL DAY TO SECOND", "int64", "<i8"),
        SqlRoot("RAW", "RAW", "binary"),
        SqlRoot("VARIANT", "VARIANT", "binary"),
        SqlRoot("BITMAP", "BITMAP", "binary"),
        SqlRoot("DISTINCT_TYPE", "DISTINCT"),
    )
}
"""The roots of types without parts. A root that it lacks has the same name in SQL."""

KEY_ROOTS = {
    **{root.text: root for root in SQL_ROOTS.values() if root.java_class},
    "STRING": SQL_ROOTS["VARCHAR"],
    "BYTES": SQL_ROOTS["VARBINARY"],
}
"""The roots of the types that a key can have, by their names in SQL."""

_CHILDREN = {
    "ARRAY": ("elementType",), "MULTISET": ("elementType",), "MAP": ("keyType", "valueType"),
}  # fmt: skip
_LONGEST = (1 << 31) - 1
_NANO_DIGITS = 9  # fractional digits of a second
_MOST_DIGITS = 38  # of a DECIMAL
_FREE_TYPES = 256  # types within a type that are always allowed, whatever the size of the object
_BYTES_OF_TYPE = 8  # a lower limit: Java needs more bytes for each type that is used once
_CHARACTERS_OF_TYPE = 256  # a long SQL name, which repeats nested types, counts as several types
_MOST_WRAPPERS = 10
_MOST_SUPERTYPES = 100

_LOGICAL = "org.apache.flink.table.types.logical."
_STREAM = b"\xac\xed\0\5"
_OBJECT, _CLASS, _STRING, _END, _NULL, _ENUM = b"s", b"r", b"t", b"x", b"p", b"~"
_ENUM_FLAGS = b"\x12\0\0"
_JAVA_ENUM = b"q\0~\0\6"
"""A reference to the class ``java.lang.Enum``, the seventh object of a type with a kind."""


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A type of Flink SQL, in SQL syntax; ``java`` is its serialized Java object.

    ``names`` are the names of a structured type's attributes, whose types are its ``children``.
    """

    text: str
    java: bytes
    root: str
    precision: int = 0
    scale: int = 0
    children: tuple[LogicalType, ...] = ()
    names: tuple[str, ...] = ()


def key_logical_type(name: str, *, is_nullable: bool = True) -> LogicalType:
    """Return a type that a key column can have, by its SQL name.

    Raises UnsupportedTypeError for a type that a key cannot have.
    """
    sql = parse_sql_type(name)
    root = KEY_ROOTS[sql.name]
    numbers = root.parameters
    has_kind = sql.name in ("TIMESTAMP", "TIMESTAMP_LTZ")
    fields = b"".join(b"I" + utf(number) for number in numbers)
    kind_bytes = b""
    if has_kind:
        fields += b"L" + utf("kind") + _STRING + utf(_class_signature("TimestampKind"))
        kind_bytes = _ENUM + _encode_class("TimestampKind", _ENUM_FLAGS) + _END + _JAVA_ENUM
        kind_bytes += _STRING + utf("REGULAR")
    superclass_fields = b"Z" + utf("isNullable") + b"L" + utf("typeRoot")
    superclass_fields += _STRING + utf(_class_signature("LogicalTypeRoot"))
    java = b"".join(
        [
            _STREAM,
            _OBJECT,
            _encode_class(root.java_class, b"\2" + (len(numbers) + has_kind).to_bytes(2, "big"), 1),
            fields + _END,
            _encode_class("LogicalType", b"\2\0\2", 1),
            superclass_fields + _END + _NULL,
            bytes([is_nullable]) + _ENUM,
            _encode_class("LogicalTypeRoot", _ENUM_FLAGS) + _END,
            _CLASS + utf("java.lang.Enum") + i64(0) + _ENUM_FLAGS + _END + _NULL,
            _STRING + utf(root.root),
            *(i32(size) for size in (sql.precision, sql.scale)[: len(numbers)]),
            kind_bytes,
        ]
    )
    return read_logical_type(Reader(java, f"the type {name}"))


def _encode_class(name: str, flags: bytes, version: int = 0) -> bytes:
    return _CLASS + utf(_LOGICAL + name) + i64(version) + flags


def _class_signature(name: str) -> str:
    return f"L{_LOGICAL.replace('.', '/')}{name};"


def read_logical_type(reader: Reader) -> LogicalType:
    """Return the type whose serialized object begins here, and advance past it.

    Raises DamagedFileError if the bytes are not such an object.
    """
    begin = reader.position
    java_object = read_java_object(reader)
    java = bytes(reader.data[begin : reader.position])
    return _TypeReader(reader, begin, _FREE_TYPES + len(java) // _BYTES_OF_TYPE).read(
        java_object, java
    )


@dataclass(slots=True)
class _TypeReader:
    """The types within the type at ``begin``; at most ``remaining`` more are accepted.

    A Java object can be referred to many times, and can refer to itself. So a few bytes could
    expand to any number of types. The limit makes the number of types proportional to the bytes.
    """

    reader: Reader
    begin: int
    remaining: int

    def read(self, java_object: object, java: bytes = b"") -> LogicalType:
        with self.reader.nested("Flink SQL types"):
            logical_type = _parse_type(self, java_object, java)
        self.remaining -= 1 + len(logical_type.text) // _CHARACTERS_OF_TYPE
        if self.remaining < 0:
            raise self.reader.error(
                "a type contains more types than its bytes allow", position=self.begin
            )
        return logical_type


def _parse_type(types: _TypeReader, java_object: object, java: bytes) -> LogicalType:
    reader, begin = types.reader, types.begin
    root = java_object.fields.get("typeRoot") if isinstance(java_object, JavaObject) else None
    if (
        not isinstance(java_object, JavaObject)
        or not isinstance(root, JavaObject)
        or not root.constant
    ):
        raise reader.error("no Flink SQL type begins here", position=begin)
    name = root.constant

    def number(field: str, least: int, most: int) -> int:
        value = java_object.fields.get(field)
        if not isinstance(value, int) or not least <= value <= most:
            raise reader.error(
                f"the type {name} has an invalid {field}: {value!r:.40}", position=begin
            )
        return value

    precision = scale = 0
    children: tuple[LogicalType, ...] = ()
    names: tuple[str, ...] = ()
    known = SQL_ROOTS.get(name, SqlRoot(name, name))
    if known.parameters == _LENGTH:
        precision = number("length", 0, _LONGEST)
        text = "STRING" if (name, precision) == ("VARCHAR", _LONGEST) else None
        text = text or ("BYTES" if (name, precision) == ("VARBINARY", _LONGEST) else None)
        text = text or f"{known.text}({precision})"
    elif known.parameters == _PRECISION:
        precision = number("precision", 0, _NANO_DIGITS)
        text = f"{known.text}({precision})"
    elif name == "DECIMAL":
        precision = number("precision", 1, _MOST_DIGITS)
        scale = number("scale", 0, precision)
        text = f"DECIMAL({precision}, {scale})"
    elif name in _CHILDREN:
        inner = [java_object.fields.get(field) for field in _CHILDREN[name]]
        children = tuple(map(types.read, inner))
        text = f"{name}<{', '.join(child.text for child in children)}>"
    elif name == "ROW":
        field_names, children = _read_fields(types, java_object, "fields")
        text = f"ROW<{_join_fields(field_names, children)}>"
    elif name == "STRUCTURED_TYPE":
        names, children = _read_attributes(types, java_object)
        text = f"STRUCTURED<{_join_fields(names, children)}>"
    else:
        text = known.text
    if java_object.fields.get("isNullable") is False:
        text += " NOT NULL"
    return LogicalType(text, java, name, precision, scale, children, names)


def _join_fields(names: tuple[str, ...], children: tuple[LogicalType, ...]) -> str:
    pairs = zip(names, children, strict=True)
    return ", ".join(f"{name} {child.text}" for name, child in pairs)


def _read_attributes(
    types: _TypeReader, structured: JavaObject
) -> tuple[tuple[str, ...], tuple[LogicalType, ...]]:
    """Return the names and types of a ``StructuredType``: those of its supertypes come first."""
    names: tuple[str, ...] = ()
    children: tuple[LogicalType, ...] = ()
    ancestor: object = structured
    for _ in range(_MOST_SUPERTYPES):
        if not isinstance(ancestor, JavaObject):
            return names, children
        own_names, own_children = _read_fields(types, ancestor, "attributes")
        names, children = own_names + names, own_children + children
        ancestor = ancestor.fields.get("superType")
    raise types.reader.error("a structured type is its own supertype", position=types.begin)


def _read_fields(
    types: _TypeReader, row: JavaObject, field: str
) -> tuple[tuple[str, ...], tuple[LogicalType, ...]]:
    """Return the names and types in a list of fields, which is inside of Java's wrappers."""
    field_list: object = row.fields.get(field)
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(field_list, JavaObject) or "list" not in field_list.fields:
            break
        field_list = field_list.fields["list"]
    else:
        raise types.reader.error("the field list of a row contains itself", position=types.begin)
    elements: list[object] = []
    if isinstance(field_list, JavaObject):
        array = field_list.fields.get("a")
        elements = array if isinstance(array, list) else field_list.custom_data
    fields = [
        element.fields
        for element in elements
        if isinstance(element, JavaObject) and "type" in element.fields
    ]
    names = tuple(str(element.get("name")) for element in fields)
    return names, tuple(types.read(element["type"]) for element in fields)


INSTANT = pa.struct([("second", pa.int64()), ("nano", pa.int32())])
"""A Java time in seconds and nanoseconds; no Arrow timestamp covers its full range."""

WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])

OUT_OF_LINE = ("RAW", "VARIANT", "BITMAP")
"""Types whose values stay bytes, and are never inside of a row's fixed part, even if short."""

EXACT_IN_MILLIS = 3
"""The highest number of fractional digits that Flink SQL stores as milliseconds alone."""
_EXACT_IN_MICROS = 6
_NANOS = 1_000_000_000
_MOST_SECONDS = (1 << 63) // _NANOS


def row_fields(columns: tuple[LogicalType, ...]) -> list[pa.Field]:
    """Return the fields of a Flink SQL row: its row kind, and its numbered columns."""
    named = [pa.field(f"f{index}", sql_type(column)) for index, column in enumerate(columns)]
    return [pa.field("row_kind", pa.int8()), *named]


def _structured_fields(structured: LogicalType) -> list[pa.Field]:
    """Return the fields of a structured type: its row kind, and its attributes by their names.

    The attributes are numbered if a name is not an identifier, or is used twice (ignoring case).
    """
    row_kind, *numbered = row_fields(structured.children)
    names = structured.names
    different = {row_kind.name, *(name.lower() for name in names)}
    if len(different) <= len(names) or not all(map(str.isidentifier, names)):
        return [row_kind, *numbered]
    named = [field.with_name(name) for field, name in zip(numbered, names, strict=True)]
    return [row_kind, *named]


def entry_types(column: LogicalType) -> tuple[LogicalType, LogicalType]:
    """Return the key and value types of a map; the values of a multiset are counts."""
    key, *value = column.children
    return key, value[0] if value else LogicalType("INT NOT NULL", b"", "INTEGER")


def sql_type(column: LogicalType) -> pa.DataType:
    """Return the Arrow type of a Flink SQL column; UnsupportedTypeError if it has none."""
    if column.root == "ROW":
        return pa.struct(row_fields(column.children))
    if column.root == "STRUCTURED_TYPE":
        return pa.struct(_structured_fields(column))
    if column.root == "ARRAY":
        return pa.list_(sql_type(column.children[0]))
    if column.root in ("MAP", "MULTISET"):
        key, value = entry_types(column)
        return pa.map_(sql_type(key), sql_type(value))
    if column.root == "DECIMAL":
        return pa.decimal128(column.precision, column.scale)
    if column.root in ("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE"):
        if column.precision > _EXACT_IN_MICROS:
            return INSTANT
        zone = "UTC" if column.root == "TIMESTAMP_WITH_LOCAL_TIME_ZONE" else None
        return pa.timestamp("ms" if column.precision <= EXACT_IN_MILLIS else "us", zone)
    known = SQL_ROOTS.get(column.root)
    if known is None or not known.arrow:
        raise UnsupportedTypeError(f"values of {column.text} can only be read as bytes")
    return pa.type_for_alias(known.arrow)


def to_nanos(array: pa.Array) -> pa.Array:
    """Convert seconds and nanoseconds to nanoseconds since 1970.

    Raises UnsupportedTypeError for a time that does not fit into 64 bits.
    """
    second, nano = (part.fill_null(0).to_numpy(zero_copy_only=False) for part in array.flatten())
    if bool(((second >= _MOST_SECONDS) | (second <= -_MOST_SECONDS)).any()):
        raise UnsupportedTypeError("a key is a timestamp more than 292 years away from 1970")
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(second * _NANOS + nano, pa.int64(), mask=nulls)
