"""Invalid settings files. No JVM starts here."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from jobs.frames import Sink, Source, Spark, session
from jobs.job import load_settings
from jobs.redistribute_offsets import OffsetsSettings
from jobs.restore import RestoreSettings
from jobs.snapshot import SnapshotSettings
from statestore.errors import SettingsError
from statestore.jobgraph.graph import JobGraph, Node
from statestore.restore.target import RestoreTarget
from statestore.settings import from_table

pytestmark = pytest.mark.spark

SNAPSHOT = """
parallelism = 4
[[keyed]]
operator = "totals-by-user"
state = "totals"
key = ["user_id"]
source = {format = "parquet", path = "p"}
"""
RESTORE = """
parallelism = 7
[[keyed]]
operator = "totals-by-user"
state = "totals"
sink = {format = "parquet", path = "p"}
"""
OFFSETS = """
parallelism = 3
[offsets]
operator = "orders-source"
state = "offsets"
"""
SOURCE = 'source = {format = "parquet", path = "p"}'
SINK = 'sink = {format = "parquet", path = "p"}'


def snapshot(toml: str) -> SnapshotSettings:
    return from_table(tomllib.loads(toml), SnapshotSettings, where="f.toml")


def test_the_defaults() -> None:
    settings = snapshot(SNAPSHOT)
    (state,) = settings.keyed
    assert (state.kind, state.entry, state.hash_scheme) == ("value", (), None)
    assert (state.source.sql, state.source.options) == (None, {})
    assert settings.spark.master == "local[*]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "parallelism = 4",
            "paralelism = 4",
            "unknown setting 'paralelism'; did you mean 'parallelism",
        ),
        ("parallelism = 4", "", "'parallelism' is missing"),
        ("parallelism = 4", 'parallelism = "4"', "parallelism must be an integer, not text"),
        ("parallelism = 4", "parallelism = 0", "parallelism must be an integer >= 1"),
        (
            "parallelism = 4",
            "parallelism = true",
            "parallelism must be an integer, not true or false",
        ),
        ('operator = "totals-by-user"', "", r"'keyed\[0\].operator' is missing"),
        ('state = "totals"', 'stat = "totals"', "did you mean 'state'"),
        ("[[keyed]]", "[[keyd]]", "unknown setting 'keyd'; did you mean 'keyed'"),
        ('key = ["user_id"]', 'key = "user_id"', r"keyed\[0\].key must be a list, not text"),
        (SOURCE, "", r"'keyed\[0\].source' is missing"),
        (SOURCE, 'source = {path = "p"}', "format is missing"),
        (SOURCE, 'source = {sql = "s", path = "p"}', "path, .* have no effect without format"),
        (
            SOURCE,
            f'changes = "all"\n{SOURCE}',
            r"keyed\[0\].changes cannot be 'all'; it can be against-latest, off, upserts",
        ),
        (SOURCE, 'source = {format = "csv", path = "p", option = {}}', "did you mean 'options'"),
        (
            SOURCE,
            'source = {format = "csv", path = "p", options = {sep = [","]}}',
            r"options\[...\] must be true or false or an integer or a number or text, not a list",
        ),
    ],
)
def test_invalid_snapshot_settings(old: str, new: str, message: str) -> None:
    assert SNAPSHOT.count(old) == 1
    with pytest.raises(SettingsError, match=message) as refused:
        snapshot(SNAPSHOT.replace(old, new))
    assert str(refused.value).startswith("f.toml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('kind = "lits"', r"keyed\[0\].kind cannot be 'lits'; did you mean 'list'"),
        ('time_domain = "evnt"', "did you mean 'event'"),
        ("max_parallelism = 32769", "max_parallelism must be an integer <= 32768"),
        ('hash_scheme = "jva"', "did you mean 'java'"),
    ],
)
def test_invalid_keyed_state_settings(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        snapshot(SNAPSHOT + line)


def test_a_snapshot_names_states_once_and_at_least_one() -> None:
    with pytest.raises(SettingsError, match=r"the settings name no state; add a \[\[keyed\]\]"):
        snapshot("parallelism = 4")
    with pytest.raises(
        SettingsError, match="'totals' of operator 'totals-by-user' is listed twice"
    ):
        snapshot(SNAPSHOT + SNAPSHOT[SNAPSHOT.index("[[keyed]]") :])


def test_the_mode_of_operator_state_must_be_given() -> None:
    state = '[[operator_state]]\noperator = "o"\nstate = "offsets"\n'
    with pytest.raises(SettingsError, match=r"'operator_state\[0\].mode' is missing"):
        snapshot(SNAPSHOT + state + SOURCE)
    with pytest.raises(SettingsError, match="mode cannot be 'spilt'; did you mean 'split'"):
        snapshot(SNAPSHOT + state + SOURCE + '\nmode = "spilt"')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SINK, 'sink = {path = "p"}', "format is missing"),
        (SINK, 'sink = {path = "p", table = "t"}', "both path and table are set"),
        (SINK, 'sink = {format = "csv", path = "p", mode = "overwite"}', "mean 'overwrite'"),
        (
            "parallelism = 7",
            "parallelism = 7\ncheckpoint = 4.2",
            "checkpoint must be an integer or text, not a number",
        ),
        (SINK, 'sink = {format = "csv"}', "neither path nor table is set"),
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
        ("parallelism = 3", "parallelism = 3\ncheckpoint = true", "checkpoint must be an integer"),
        ("[offsets]", "[offset]", "did you mean 'offsets'"),
        ("[offsets]", "files.per_subtak = 'x'\n[offsets]", "did you mean 'per_subtask'"),
    ],
)
def test_invalid_redistribute_offsets_settings(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(tomllib.loads(OFFSETS.replace(old, new)), OffsetsSettings, where="f.toml")


def test_spark_has_s3_and_delta_only_if_it_reads_or_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store needs neither."""
    monkeypatch.setattr("jobs.frames.spark_session", lambda **given: given)

    def asked(*places: Source | Sink) -> tuple[Any, Any]:
        given: Any = session(Spark(), "name", places)
        return given["table_format"], given["s3"]

    assert asked(Source(format="csv", path="p"), Source(sql="SELECT 1")) == ("parquet", False)
    assert asked(Source(format="csv", path="p"), Sink(format="delta", path="p")) == ("delta", False)
    assert asked(Source(format="csv", path="s3a://b/p")) == ("parquet", True)


def restore(*lines: str, sink: str = SINK) -> RestoreSettings:
    toml = RESTORE.replace("parallelism = 7", "\n".join(lines)).replace(SINK, sink)
    return from_table(tomllib.loads(toml), RestoreSettings, where="f.toml")


def test_a_graph_replaces_the_parallelism() -> None:
    without = SNAPSHOT.replace("parallelism = 4", 'graph = "job.toml"')
    assert (snapshot(without).parallelism, snapshot(without).graph) == (None, "job.toml")
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
        (["parallelism = 0"], "parallelism must be an integer >= 1"),
        (["parallelism = 32769"], "parallelism must be an integer <= 32768"),
        (['parallelism = "7"'], "parallelism cannot be '7'; it can be auto"),
        (["parallelism = true"], "parallelism must be an integer or text, not true or false"),
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
    load_settings(str(file), (), RestoreSettings)
    with pytest.raises(SettingsError, match=f"'totals' .* has a sink with mode '{mode}'"):
        load_settings(str(file), ["restart-strategy.type='fixed-delay'"], RestoreSettings)
