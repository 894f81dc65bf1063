"""A lock is TOML that reads back as the same contract, without figures of the state."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.contract.lock import FORMAT, lock_text, parse_lock, read_lock, write_lock
from statestore.contract.model import JobContract, OperatorContract, SourceContract, StateContract
from statestore.errors import FormatVersionError, InvalidArgumentError

STATE = StateContract(
    name="totals",
    kind="value",
    form={
        "columns": {"user id": "string", "total": "long"},
        "key": ["user id"],
        "fields": [{"name": "b", "kind": "x"}, {"name": "a", "kind": "y"}],
    },
    rows=7,
    bytes=700,
)
JOB = JobContract(
    engine="spark",
    version="4.2.0",
    partitions=2,
    settings={"spark.sql.b": "1", "spark.sql.a": "2"},
    sources=(SourceContract(id="1", kind="Kafka"), SourceContract(id="0", kind="Files")),
    operators=(
        OperatorContract(id="1", name="dedupe", kind="dedupe"),
        OperatorContract(id="0", name="stateStoreSave", kind="aggregation", states=(STATE,)),
    ),
)


def without_figures(job: JobContract) -> JobContract:
    operators = tuple(
        replace(
            operator,
            states=tuple(replace(state, rows=None, bytes=None) for state in operator.states),
        )
        for operator in sorted(job.operators, key=lambda operator: operator.id)
    )
    return replace(job, operators=operators)


def test_a_lock_reads_back_sorted_and_without_figures() -> None:
    text = lock_text(JOB)
    assert parse_lock(text, "state.lock") == without_figures(JOB)
    assert "700" not in text
    assert text == lock_text(parse_lock(text, "state.lock"))


def test_a_lock_has_one_line_for_each_column() -> None:
    assert lock_text(JOB).splitlines()[1:12] == [
        f"format = {FORMAT}",
        'engine = "spark"',
        'version = "4.2.0"',
        "partitions = 2",
        "",
        "[settings]",
        '"spark.sql.a" = "2"',
        '"spark.sql.b" = "1"',
        "",
        "[[sources]]",
        'id = "1"',
    ]
    assert '[operators.states.form.columns]\ntotal = "long"\n"user id" = "string"' in lock_text(JOB)


texts = st.text(st.characters(codec="utf-8"))
plain = st.recursive(
    texts | st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, plain, max_size=4), texts)
def test_every_form_reads_back(form: dict[str, Any], name: str) -> None:
    state = StateContract(name=name, kind="value", form=form)
    operator = OperatorContract(id="0", name="o", kind="k", states=(state,))
    job = JobContract(engine="store", operators=(operator,))
    assert parse_lock(lock_text(job), "state.lock") == job


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x =", "is not TOML"),
        ("engine = 'spark'", "has no format number"),
        ("format = 1", "engine"),
        ("format = 1\nengine = 'spark'\n[[operators]]\nid = 7", r"\$.operators\[0\].id"),
    ],
)
def test_other_text_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_lock(text, "state.lock")


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    path.write_text(f"format = {FORMAT + 1}\nengine = 'new'\n")
    with pytest.raises(FormatVersionError, match=f"state.lock has format {FORMAT + 1}"):
        read_lock(path)


def test_a_lock_that_was_cut_or_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    assert write_lock(path, JOB)
    assert not write_lock(path, JOB)
    assert read_lock(path) == without_figures(JOB)
    lines = path.read_text().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        with pytest.raises(InvalidArgumentError, match="write it again with statestore contract"):
            read_lock(path)
    path.write_text("".join(lines).replace('total = "long"', 'total = "int"'))
    with pytest.raises(InvalidArgumentError, match="was cut, merged or changed"):
        read_lock(path)
    path.write_bytes("".join(lines).replace("\n", "\r\n").encode())
    assert read_lock(path) == without_figures(JOB), "git may change the ends of lines"


def test_only_a_lock_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("def build(): ...")
    with pytest.raises(InvalidArgumentError, match="exists; remove it, or choose another name"):
        write_lock(path, JOB)
    assert path.read_text() == "def build(): ..."


def test_a_value_that_toml_lacks_is_refused() -> None:
    state = StateContract(name="s", kind="value", form={"x": None})
    job = JobContract(
        engine="store", operators=(OperatorContract(id="0", name="o", kind="k", states=(state,)),)
    )
    with pytest.raises(InvalidArgumentError, match="None"):
        lock_text(job)


def test_the_text_is_toml() -> None:
    assert tomllib.loads(lock_text(JOB))["operators"][0]["id"] == "0"
