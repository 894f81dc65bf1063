"""Convert values from Kryo 2, which Flink 1 has, to Kryo 5, which Flink 2 has.

Flink 2 accepts the state of Flink 1 as compatible, because the serializer's snapshots are the same.
But it would read wrong values: numbers of a fixed width have another byte order, and collections,
maps, enums and times have another form. So a value is read here as an object graph, and written
again. Values of classes that a job's own serializer writes, or for which Kryo uses the fields of
the class, cannot be converted. A value of either version can be skipped, which finds its end.
"""

from __future__ import annotations

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.kryo_codecs import CODECS
from statestore.interop.flink.types.kryo_objects import (
    KRYO_2,
    KryoClasses,
    KryoObject,
    KryoSource,
    KryoTarget,
)

_TO_CONVERT = (
    "It cannot be converted to Kryo 5: before the migration, let the job of Flink 1 store it with "
    "another serializer, or leave the state out"
)
_TO_SKIP = "Its end is unknown, so all of the value has to stay bytes"


def convert_kryo_value(data: bytes, classes: KryoClasses, name: str) -> bytes:
    """Convert a value with its class from Kryo 2 to Kryo 5.

    Args:
        data: the value, as ``KryoSerializer`` of Flink 1 writes it.
        classes: the classes that the job registered with Kryo.
        name: the place of the value, for messages.

    Returns:
        The value, as ``KryoSerializer`` of Flink 2 writes it.

    Raises:
        UnsupportedTypeError: for a value of a class that cannot be converted.
        DamagedFileError: if the bytes are not a value.
    """
    source = KryoSource(Reader(data, name), classes, CODECS, KRYO_2, _TO_CONVERT)
    target = KryoTarget()
    try:
        value = source.read()
        source.reader.end("a value of Kryo")
        target.write(value)
    except RecursionError:
        raise _nested_too_deeply(name) from None
    return b"".join(target.parts)


def skip_kryo_value(reader: Reader, classes: KryoClasses, kryo: int) -> None:
    """Skip a value with its class that the version ``kryo`` wrote.

    The errors are those of the conversion.
    """
    _read(KryoSource(reader, classes, CODECS, kryo, _TO_SKIP))


def read_kryo_object(reader: Reader, classes: KryoClasses) -> KryoObject | None:
    """Read a value with its class that Kryo 2 wrote; the errors are those of the conversion."""
    return _read(KryoSource(reader, classes, CODECS, KRYO_2, _TO_CONVERT))


def _read(source: KryoSource) -> KryoObject | None:
    try:
        return source.read()
    except RecursionError:
        raise _nested_too_deeply(source.reader.name) from None


def _nested_too_deeply(name: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"{name} has a value whose objects are nested too deeply")
