"""Column types have one name in messages."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from statestore.errors import UnsupportedTypeError
from statestore.format.schema import Schema, type_text
from statestore.keys.arrow_types import arrow_type_text, check_key_types
from statestore.rows.column_types import arrow_type
from tests.support.key_values import schemas


@given(schemas)
def test_a_type_has_one_name(schema: Schema) -> None:
    """Messages about Arrow columns use the name that the manifest has."""
    names = [arrow_type_text(arrow_type(field.type)) for field in schema.fields]
    assert names == [type_text(field.type) for field in schema.fields]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.uint8(), "uint8"),
        (pa.time64("us"), "time64[us]"),
        (pa.list_(pa.uint8()), "array<uint8>"),
        (pa.decimal256(40, 2), "decimal256(40, 2)"),
    ],
)
def test_a_type_that_cannot_be_stored_has_the_name_of_arrow(kind: pa.DataType, name: str) -> None:
    assert arrow_type_text(kind) == name


def test_errors_about_keys_use_these_names() -> None:
    field = pa.field("k", pa.int64())
    with pytest.raises(UnsupportedTypeError, match="a column of type long is hashed as Long and"):
        check_key_types([field], "java", ["Boolean"])
