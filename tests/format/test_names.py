"""Names inside a store are built and parsed in one module, for any uid and state name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.names import (
    checkpoint_id_of,
    escape,
    keyed_table,
    manifest_path,
    operator_file,
    operator_table,
    partition_file,
    tombstone_path,
    unescape,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)
ids = st.integers(1, 10**10 - 1)


@given(names)
def test_any_name_survives_a_round_trip_through_its_path_element(name: str) -> None:
    """The mapping is injective, so different names never collide."""
    assert unescape(escape(name)) == name


@given(names)
def test_a_path_element_needs_no_quoting_anywhere(name: str) -> None:
    """It needs none in URLs, shells and Delta logs, and Spark does not treat it as a
    hidden file.
    """
    assert re.fullmatch(r"[A-Za-z0-9~-][A-Za-z0-9._~-]*", escape(name))


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("totals-by-user", "totals-by-user"),
        ("v1.2_x", "v1.2_x"),
        ("a b", "a~20b"),
        ("a/b", "a~2Fb"),
        (".", "~2E"),
        ("..", "~2E."),
        ("../../etc/passwd", "~2E.~2F..~2Fetc~2Fpasswd"),
        ("_hidden", "~5Fhidden"),
        ("key_group=1", "key_group~3D1"),
        ("~20", "~7E20"),
        ("%2F", "~252F"),
        ("é", "~C3~A9"),
        ("e\u0301", "e~CC~81"),
        ("\0", "~00"),
        ("\n", "~0A"),
    ],
)
def test_a_name_is_written_as(name: str, element: str) -> None:
    """Other characters are replaced by their UTF-8 bytes."""
    assert escape(name) == element


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty"),
        ("x" * 201, "needs 201 bytes"),
        ("é" * 34, "needs 204 bytes"),
        ("\ud800", "unpaired surrogate"),
    ],
)
def test_a_name_that_no_path_can_have_is_refused(name: str, message: str) -> None:
    """This applies to uids and to state names."""
    with pytest.raises(InvalidArgumentError, match=message):
        keyed_table(name, "state")
    with pytest.raises(InvalidArgumentError, match=message):
        operator_table("uid", name)


def test_the_longest_name_is_accepted() -> None:
    """Its path element has 200 bytes."""
    assert len(escape("x" * 200)) == len(escape("é" * 33) + "xx") == 200


def test_names_that_differ_only_in_case_have_paths_that_do_too() -> None:
    """A documented limit: on a case-insensitive file system such names share a folder.

    Data files in that folder still have different names, because each contains a token.
    """
    assert keyed_table("Uid", "s") != keyed_table("uid", "s")
    assert keyed_table("Uid", "s").lower() == keyed_table("uid", "s")
    first, second = (partition_file(1, 0, token) for token in ("a", "b"))
    assert first.lower() != second.lower()


def test_keyed_and_operator_state_of_one_name_are_separate() -> None:
    """They are two tables."""
    assert keyed_table("u", "s") == "operators/u/keyed/s"
    assert operator_table("u", "s") == "operators/u/operator/s"


@given(ids)
def test_a_checkpoint_id_can_be_parsed_from_its_files(checkpoint_id: int) -> None:
    """I4: the files are its manifest and its tombstone."""
    assert checkpoint_id_of(manifest_path(checkpoint_id)) == (checkpoint_id, False)
    assert checkpoint_id_of(tombstone_path(checkpoint_id)) == (checkpoint_id, True)


@given(ids, ids)
def test_files_sort_as_their_checkpoints_do(left: int, right: int) -> None:
    """A listing is in order of id."""
    assert (manifest_path(left) < manifest_path(right)) == (left < right)
    assert (operator_file(left, "t") < operator_file(right, "t")) == (left < right)


@pytest.mark.parametrize("checkpoint_id", [0, -1, 10**10])
def test_an_id_out_of_bounds_is_refused(checkpoint_id: int) -> None:
    """An id has ten digits and starts at 1."""
    for path in (manifest_path, tombstone_path):
        with pytest.raises(InvalidArgumentError, match="checkpoint id"):
            path(checkpoint_id)


@pytest.mark.parametrize(
    "path",
    [
        "checkpoints/0000000000.json",
        "checkpoints/000000001.json",
        "checkpoints/00000000001.json",
        "checkpoints/0000000001.JSON",
        "checkpoints/0000000001.json ",
        "checkpoints/0000000001.json\n",
        "checkpoints/0000000001.jsonx",
        "checkpoints/.0000000001.json",
        "checkpoints/٠٠٠٠٠٠٠٠٠١.json",
        "checkpoints/backup/0000000001.json",
        "backup/checkpoints/0000000001.json",
        "0000000001.json",
        "checkpoints/",
        "statestore.json",
        "",
    ],
)
def test_other_names_are_not_a_checkpoint(path: str) -> None:
    """I4: no other file makes a checkpoint visible."""
    assert checkpoint_id_of(path) is None


def test_a_data_file_names_checkpoint_and_key_group() -> None:
    """The file is in a partition folder, from which Spark, DuckDB and Polars read the column."""
    assert partition_file(42, 17, "t") == "key_group=17/0000000042-00017-t.parquet"
    assert operator_file(42, "t") == "0000000042-t.parquet"
