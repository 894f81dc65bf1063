"""Invalid settings files. No JVM starts here."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from jobs.command import load_settings
from jobs.settings import KeyedSettings, OffsetsSettings, RestoreSettings, SnapshotSettings
from statestore.errors import SettingsError
from statestore.jobgraph.graph import JobGraph, Node
from statestore.parquet.writer import ParquetOptions
from statestore.restore.target import RestoreTarget
from statestore.settings import from_table
from statestore.storage.local_cache import CacheOptions

pytestmark = pytest.mark.spark

SNAPSHOT = """
parallelism = 4
[store]
url = "s"
[[keyed]]
operator = "totals-by-user"
state = "totals"
key = ["user_id"]
source = {format = "parquet", path = "p"}
"""
RESTORE = """
parallelism = 7
[store]
url = "s"
[[keyed]]
operator = "totals-by-user"
state = "totals"
sink = {format = "parquet", path = "p"}
"""
OFFSETS = """
parallelism = 3
[store]
url = "s"
[offsets]
operator = "orders-source"
state = "offsets"
"""
SOURCE = 'source = {format = "parquet", path = "p"}'
SINK = 'sink = {format = "parquet", path = "p"}'


def snapshot(toml: str) -> SnapshotSettings:
    return from_table(tomllib.loads(toml), SnapshotSettings, where="f.toml")


def keyed(**given: Any) -> KeyedSettings:
    table = {"operator": "u", "state": "n", "key": ["k"], "source": {"format": "csv", "path": "p"}}
    return from_table(table | given, KeyedSettings, where="f.toml")


def test_the_defaults() -> None:
    settings = snapshot(SNAPSHOT)
    (state,) = settings.keyed
    assert (settings.store.table_format, settings.spark.master) == (None, "local[*]")
    assert (state.kind, state.entry, state.hash_scheme) == ("value", (), None)
    assert (state.source.where, state.source.select, state.source.options) == (None, (), {})


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        ({"kind": "reducing"}, ()),
        ({"kind": "list"}, ("position",)),
        ({"kind": "list", "position": "at"}, ("at",)),
        ({"kind": "map", "map_key": ["country", "city"]}, ("country", "city")),
        ({"kind": "timers", "time_domain": "event"}, ("timestamp",)),
        ({"kind": "timers", "time_domain": "event", "timestamp": "due"}, ("due",)),
    ],
)
def test_each_kind_has_its_columns(given: dict[str, Any], entry: tuple[str, ...]) -> None:
    assert keyed(**given).entry == entry


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "parallelism = 4",
            "paralelism = 4",
            "unknown setting 'paralelism'; did you mean 'parallelism",
        ),
        ("parallelism = 4", "", "'parallelism' is missing"),
        ("parallelism = 4", 'parallelism = "4"', "parallelism must be an integer, not a string"),
        ("parallelism = 4", "parallelism = 0", "parallelism must be in 1..32768, not 0"),
        (
            "parallelism = 4",
            "parallelism = true",
            "parallelism must be an integer, not true or false",
        ),
        ('url = "s"', "", "'store.url' is missing"),
        ('url = "s"', 'url = "s"\ntable_format = "dleta"', "did you mean 'delta'"),
        ('operator = "totals-by-user"', "", r"'keyed\[0\].operator' is missing"),
        ('state = "totals"', 'stat = "totals"', "did you mean 'state'"),
        ("[[keyed]]", "[[keyd]]", "unknown setting 'keyd'; did you mean 'keyed'"),
        ('key = ["user_id"]', 'key = "user_id"', r"keyed\[0\].key must be a list, not a string"),
        ('key = ["user_id"]', "key = []", "key has no columns"),
        (SOURCE, "", r"'keyed\[0\].source' is missing"),
        (SOURCE, 'source = {format = "csv", path = "p", table = "t"}', "both path and table are"),
        (SOURCE, 'source = {format = "csv"}', "neither path nor table is set"),
        (SOURCE, 'source = {path = "p"}', "format is missing"),
        (
            SOURCE,
            'source = {format = "csv", path = "p", group_by = ["a"]}',
            "group_by requires select",
        ),
        (
            SOURCE,
            f'changes = "all"\n{SOURCE}',
            "changes must be one of off, upserts, against-latest",
        ),
        (SOURCE, 'source = {table = "t", format = "csv"}', "a table has its own format"),
        (SOURCE, 'source = {format = "csv", path = "p", option = {}}', "did you mean 'options'"),
        (
            SOURCE,
            'source = {format = "csv", path = "p", options = {sep = [","]}}',
            "the option 'sep' must be a string, a number, true or false",
        ),
    ],
)
def test_invalid_snapshot_settings(old: str, new: str, message: str) -> None:
    assert SNAPSHOT.count(old) == 1
    with pytest.raises(SettingsError, match=message) as refused:
        snapshot(SNAPSHOT.replace(old, new))
    assert str(refused.value).startswith("f.toml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "lits"}, "kind must be one of value, list, .*did you mean 'list'"),
        ({"kind": "map"}, "map_key is missing"),
        ({"kind": "value", "map_key": ["m"]}, "map_key cannot be set for value state"),
        (
            {"kind": "map", "map_key": ["m"], "position": "p"},
            "position cannot be set for map state",
        ),
        ({"kind": "timers"}, "time_domain is missing"),
        ({"kind": "value", "time_domain": "event"}, "time_domain cannot be set for value"),
        ({"kind": "timers", "time_domain": "evnt"}, "did you mean 'event'"),
        ({"max_parallelism": 32769}, "max_parallelism must be in 1..32768"),
        ({"hash_scheme": "jva"}, "did you mean 'java'"),
    ],
)
def test_invalid_keyed_state_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        keyed(**given)


def test_a_snapshot_names_states_once_and_at_least_one() -> None:
    with pytest.raises(SettingsError, match=r"the settings name no state; add a \[\[keyed\]\]"):
        snapshot('parallelism = 4\nstore = {url = "s"}')
    with pytest.raises(
        SettingsError, match="'totals' of operator 'totals-by-user' is listed twice"
    ):
        snapshot(SNAPSHOT + SNAPSHOT[SNAPSHOT.index("[[keyed]]") :])


def test_max_parallelism_is_not_below_parallelism() -> None:
    with pytest.raises(SettingsError, match="max_parallelism 3, which is below the parallelism 4"):
        snapshot(SNAPSHOT + "max_parallelism = 3")


def test_the_mode_of_operator_state_must_be_given() -> None:
    state = '[[operator_state]]\noperator = "o"\nstate = "offsets"\n'
    with pytest.raises(SettingsError, match=r"'operator_state\[0\].mode' is missing"):
        snapshot(SNAPSHOT + state + SOURCE)
    with pytest.raises(
        SettingsError, match=r"one of split, union, broadcast, not 'spilt'.*'split'"
    ):
        snapshot(SNAPSHOT + state + SOURCE + '\nmode = "spilt"')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SINK, 'sink = {path = "p"}', "format is missing"),
        (SINK, 'sink = {path = "p", table = "t"}', "both path and table are set"),
        (SINK, 'sink = {format = "csv", path = "p", mode = "overwite"}', "mean 'overwrite'"),
        ("parallelism = 7", "parallelism = 7\ncheckpoint = 4.2", "checkpoint must be a number or"),
        ('url = "s"', 'url = "s"\ntable_format = "delta"', "unknown setting 'store.table_format'"),
    ],
)
def test_invalid_restore_settings(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(tomllib.loads(RESTORE.replace(old, new)), RestoreSettings, where="f.toml")


def test_two_restored_states_do_not_share_a_target() -> None:
    second = RESTORE[RESTORE.index("[[keyed]]") :].replace('"totals"', '"other"')
    with pytest.raises(SettingsError, match="two states have the same target 'p'"):
        from_table(tomllib.loads(RESTORE + second), RestoreSettings, where="f.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("parallelism = 3", "", "'parallelism' is missing"),
        ("parallelism = 3", "parallelism = 3\ncheckpoint = true", "checkpoint must be a number or"),
        ("[offsets]", "[offset]", "did you mean 'offsets'"),
        ('url = "s"', 'url = "s"\n[files]\nper_subtak = "x"', "did you mean 'per_subtask'"),
    ],
)
def test_invalid_redistribute_offsets_settings(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(tomllib.loads(OFFSETS.replace(old, new)), OffsetsSettings, where="f.toml")


def test_s3_is_configured_if_spark_itself_uses_it() -> None:
    """A source needs it. A store does not, because it is written without Spark's own access."""
    assert not snapshot(SNAPSHOT.replace('url = "s"', 'url = "s3://b/s"')).needs_s3
    assert snapshot(SNAPSHOT.replace('path = "', 'path = "s3a://b/')).needs_s3


def test_delta_is_configured_if_spark_reads_or_writes_it() -> None:
    """A store's own tables do not need it."""
    assert not snapshot(SNAPSHOT).needs_delta
    read = SNAPSHOT.replace('format = "parquet", path', 'format = "delta", path')
    assert snapshot(read).needs_delta


def restore(*lines: str, sink: str = SINK) -> RestoreSettings:
    toml = RESTORE.replace("parallelism = 7", "\n".join(lines)).replace(SINK, sink)
    return from_table(tomllib.loads(toml), RestoreSettings, where="f.toml")


def test_a_graph_replaces_the_parallelism() -> None:
    without = SNAPSHOT.replace("parallelism = 4", 'graph = "job.toml"')
    assert (snapshot(without).parallelism, snapshot(without).graph) == (None, "job.toml")
    assert snapshot(without + "max_parallelism = 3").keyed[0].max_parallelism == 3
    assert restore('graph = "job.toml"', "allow_non_restored_state = true").parallelism is None


def test_settings_become_the_target_of_a_restore() -> None:
    assert restore().target(None) == RestoreTarget()
    auto = restore('parallelism = "auto"', 'bytes_per_task = "256MiB"')
    assert auto.target(None) == RestoreTarget(parallelism="auto", bytes_per_task=2**28)
    number = restore('parallelism = "auto"', "bytes_per_task = 4096")
    assert number.target(None) == RestoreTarget(parallelism="auto", bytes_per_task=4096)
    graph = JobGraph((Node("a"),))
    dropping = restore('graph = "g"', "allow_non_restored_state = true").target(graph)
    assert dropping == RestoreTarget(graph=graph, allow_non_restored_state=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["parallelism = 0"], r"parallelism must be in 1\.\.32768 or 'auto', not 0"),
        (["parallelism = 32769"], r"must be in 1\.\.32768 or 'auto', not 32769"),
        (['parallelism = "7"'], "parallelism must be an integer or 'auto', not '7'"),
        (["parallelism = true"], "parallelism must be an integer or 'auto', not True"),
        (['parallelism = "auto"', 'bytes_per_task = "256 apples"'], "not a number of bytes"),
        (
            ["parallelism = 7", 'bytes_per_task = "1MiB"'],
            "bytes_per_task requires parallelism 'auto'",
        ),
        (["parallelism = 7", 'graph = "g"'], "pass either the graph or these numbers"),
        (["max_parallelism = 7", 'graph = "g"'], "pass either the graph or these numbers"),
        (["allow_non_restored_state = true"], "requires a job graph"),
    ],
)
def test_invalid_targets_of_a_restore(lines: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        restore(*lines)


@pytest.mark.parametrize("mode", ["append", "ignore"])
def test_a_restart_needs_a_sink_that_can_be_written_again(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    sink = SINK.replace("}", f', mode = "{mode}"}}')
    file.write_text(RESTORE.replace(SINK, sink))
    load_settings(RestoreSettings, str(file))
    with pytest.raises(SettingsError, match=f"'totals' .* has a sink with mode '{mode}'"):
        load_settings(RestoreSettings, str(file), ["restart-strategy.type=fixed-delay"])


def test_the_local_cache_has_a_default_size() -> None:
    store = snapshot(SNAPSHOT.replace('url = "s"', 'url = "s"\nlocal_cache = "c"')).store
    assert store.options == {
        "storage_options": {},
        "cache": CacheOptions("c", 10 * 2**30),
        "parallel_streams": 16,
        "table_format": None,
        "layout": None,
        "parquet": ParquetOptions(),
    }
    assert restore().store.options["cache"] is None
    with pytest.raises(SettingsError, match=r"store\.local_cache_bytes must be at least 1, not 0"):
        snapshot(SNAPSHOT.replace('url = "s"', 'url = "s"\nlocal_cache_bytes = 0'))


def test_how_files_are_written() -> None:
    lines = 'layout = "auto"\nrow_group_rows = 7\nrow_group_bytes = 8\nzstd_level = 9'
    options = snapshot(SNAPSHOT.replace('url = "s"', f'url = "s"\n{lines}')).store.options
    assert options["layout"] == "auto"
    assert options["parquet"] == ParquetOptions(row_group_rows=7, row_group_bytes=8, zstd_level=9)
    with pytest.raises(SettingsError, match="layout must be one of partitioned, ranged, auto"):
        snapshot(SNAPSHOT.replace('url = "s"', 'url = "s"\nlayout = "striped"'))
