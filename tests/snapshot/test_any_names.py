"""Names of operators, states, columns and savepoints: every reader can read the accepted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import example, given, reject
from hypothesis import strategies as st

from statestore import StateStore
from statestore.cli.main import cli
from statestore.errors import StateStoreError
from statestore.format.names import keyed_table
from tests.support.examples import examples

NAMES = st.one_of(
    st.text(min_size=1, max_size=12),
    st.text("aZ0 ._-~/\\'\"`$%:;*?<>|&()[]{}\n\té\u0301\U0001f600", min_size=1, max_size=8),
    st.sampled_from(
        ["..", ".", "_delta_log", "key_group", "latest", "con", "a" * 200, "\u202eabc"]
    ),
)


@pytest.mark.long
@pytest.mark.slow
@examples(25)
@given(uid=NAMES, name=NAMES, column=NAMES, saved=NAMES)
@example(uid="..", name=".", column="a b", saved="x/../y")
@example(uid="operators", name="_delta_log", column="SELECT", saved="~2E~2E")
@example(uid="é" * 50, name="s", column="\U0001f600", saved="é" * 50)
def test_accepted_names_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, uid: str, name: str, column: str, saved: str
) -> None:
    folder = tmp_path_factory.mktemp("names")
    store = StateStore.open(str(folder / "store"))
    rows = pa.table({"k": ["a", "b"], column: [1, 2]}) if column != "k" else pa.table({"k": [1]})
    wanted = rows.slice(0, 1).to_pylist()
    key = wanted[0]["k"]
    try:
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed(uid, name, rows, key="k", max_parallelism=2)
            checkpoint.write_union(uid, f"{name}2", [[{column: 7}]])
        store.maintenance.savepoint(saved, 1)
    except StateStoreError:
        reject()
    read(store, uid, name, key, wanted)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes(uid, name, rows.slice(1), key="k")
        checkpoint.carry_rest()
    store.maintenance.compact(everything=True)
    store.maintenance.expire(retain=1)
    store.maintenance.gc()
    read(StateStore.open(str(folder / "store")), uid, name, key, wanted)
    assert store.restore(checkpoint=saved).keyed(uid, name).get(key) == wanted
    assert store.restore().operator_state(uid, f"{name}2").subtask(0) == [{column: 7}]
    outside = [path.name for path in folder.iterdir() if path.name != "store"]
    assert outside == []


def read(store: StateStore, uid: str, name: str, key: Any, wanted: list[dict[str, Any]]) -> None:
    assert store.restore().keyed(uid, name).get(key) == wanted
    assert store.maintenance.verify("all", deep=True).is_intact
    table = DeltaTable(str(Path(store.url, keyed_table(uid, name)))).to_pyarrow_table()
    assert set(wanted[0]) <= set(table.schema.names)
    (view,) = (view for view in store.views() if view.name == name and view.schema == uid)
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (view.schema, view.name))
    assert store.query(f"SELECT k FROM {quoted}").read_all().num_rows
    words = ["--store", store.url, "show", "latest", "--output", "json"]
    document = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)
    assert [operator["operator"] for operator in document["operators"]] == [uid]
    assert CliRunner().invoke(cli, words[:-2], catch_exceptions=False).exit_code == 0
