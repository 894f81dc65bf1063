from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from statestore.delta.state_table import TABLE_FORMATS
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.parquet.writer import ParquetOptions
from statestore.settings import (
    ENVIRONMENT,
    Settings,
    from_table,
    read_toml,
    resolve_settings,
    setting,
)
from statestore.storage.local_cache import DEFAULT_LIMIT_BYTES
from tests.syntax import ROOT

T = TypeVar("T")
DOCUMENTED = ROOT / "conf" / "statestore.toml"


@dataclass(frozen=True, kw_only=True)
class Topic:
    name: str
    partitions: int = setting(1, unit="Kafka partitions", low=1)


@dataclass(frozen=True, kw_only=True)
class Job:
    uid: str
    ratio: float
    parallelism: int | None = setting(None, low=1, high=32768)
    mode: Literal["split", "union"] = "split"
    dry: bool = False
    columns: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    topic: Topic | None = None
    topics: tuple[Topic, ...] = ()

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise InvalidArgumentError(f"ratio {self.ratio} is above 1")


FULL = """
uid = "totals"
ratio = 1
parallelism = 7
mode = "union"
dry = true
columns = ["a", "b"]
options = {"fs.s3a.endpoint" = "http://x"}
[topic]
name = "orders"
[[topics]]
name = "a"
[[topics]]
name = "b"
partitions = 3
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read(path: Path, kind: type[T]) -> T:
    return from_table(read_toml(path), kind, where=str(path))


def test_a_file_becomes_a_dataclass(tmp_path: Path) -> None:
    assert read(write(tmp_path / "job.toml", FULL), Job) == Job(
        uid="totals",
        ratio=1.0,
        parallelism=7,
        mode="union",
        dry=True,
        columns=("a", "b"),
        options={"fs.s3a.endpoint": "http://x"},
        topic=Topic(name="orders"),
        topics=(Topic(name="a"), Topic(name="b", partitions=3)),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'uid', 'ratio' are missing"),
        ("ratio = 1", "'uid' is missing"),
        ("uid = 1\nratio = 1", "uid must be a string, not an integer (1)"),
        ("uid = 'u'\nratio = 'x'", "ratio must be a number, not a string ('x')"),
        ("uid = 'u'\nratio = true", "ratio must be a number, not true or false (True)"),
        ("uid = 'u'\nratio = 1\nparallelism = true", "parallelism must be an integer, not true or"),
        ("uid = 'u'\nratio = 1\nparallelism = 0", "parallelism must be in 1..32768, not 0"),
        ("uid = 'u'\nratio = 1\ndry = 1", "dry must be true or false, not an integer (1)"),
        (
            "uid = 'u'\nratio = 1\nmode = 'onion'",
            "mode must be one of split, union, not 'onion'; did",
        ),
        ("uid = 'u'\nratio = 1\nmode = []", "mode must be one of split, union, not []"),
        ("uid = 'u'\nratio = 1\ncolumns = 'a'", "columns must be a list, not a string ('a')"),
        (
            "uid = 'u'\nratio = 1\ncolumns = ['a', 2]",
            "columns[1] must be a string, not an integer (2)",
        ),
        (
            "uid = 'u'\nratio = 1\noptions = {a = 1}",
            "options.a must be a string, not an integer (1)",
        ),
        ("uid = 'u'\nratio = 1\ntopic = 'x'", "topic must be a table, not a string ('x')"),
        ("uid = 'u'\nratio = 1\ntopic = {}", "'topic.name' is missing"),
        (
            "uid = 'u'\nratio = 1\ntopics = [{nmae = 'x'}]",
            "unknown setting 'topics[0].nmae'; did you",
        ),
        (
            "uid = 'u'\nratio = 1\ntopics = [{name = 'x', partitions = 0}]",
            "topics[0].partitions must be at least 1, not 0",
        ),
        ("uid = 'u'\nratio = 1\nuidd = 'x'", "unknown setting 'uidd'; did you mean 'uid'?"),
        (
            "uid = 'u'\nratio = 1\nzzz = 'x'",
            "unknown setting 'zzz'; known names are columns, dry, ",
        ),
        ("uid = 'u'\nratio = 2", "ratio 2.0 is above 1"),
        ("uid =", " is not valid TOML: "),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "job.toml", text)
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        read(path, Job)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings file .*none.toml does not exist"):
        read(tmp_path / "none.toml", Job)
    with pytest.raises(SettingsError, match="Is a directory"):
        read(tmp_path, Job)
    (tmp_path / "latin.toml").write_bytes(b"uid = '\xe4'")
    with pytest.raises(SettingsError, match=r"latin.toml is not valid TOML"):
        read(tmp_path / "latin.toml", Job)


def commented(text: str) -> dict[str, Any]:
    """Return the file's settings, those without a default (commented out) as the example given."""
    return tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))


def test_file_and_dataclass_have_the_same_settings() -> None:
    names = [one.name for one in dataclasses.fields(Settings)]
    assert list(commented(DOCUMENTED.read_text())) == names
    assert list(ENVIRONMENT) == names
    assert read(DOCUMENTED, Settings) == Settings()
    given = tomllib.loads(DOCUMENTED.read_text())
    with_default = {
        f.name: f.default for f in dataclasses.fields(Settings) if f.default is not None
    }
    assert given == with_default


def test_the_file_states_reason_unit_default_and_variable() -> None:
    paragraphs = DOCUMENTED.read_text().split("\n\n")[1:]
    fields = dataclasses.fields(Settings)
    assert [p for p in paragraphs if " = " in p][-len(fields) :] == paragraphs[-len(fields) :]
    for one, paragraph in zip(fields, paragraphs[-len(fields) :], strict=True):
        *reason, brackets, line = paragraph.strip().splitlines()
        default = "none" if one.default is None else one.default
        variable = ENVIRONMENT[one.name]
        assert f"{reason[-1]} {brackets}".endswith(
            f"[{one.metadata['unit']}; {default}; {variable}]"
        )
        assert line.removeprefix("# ").startswith(f"{one.name} = ")
        assert reason


def test_defaults_are_those_of_the_code() -> None:
    for name in ("row_group_rows", "row_group_bytes", "zstd_level"):
        assert getattr(Settings(), name) == getattr(ParquetOptions(), name)
    assert Settings().local_cache_bytes == DEFAULT_LIMIT_BYTES
    for table_format in TABLE_FORMATS:
        from_table({"table_format": table_format}, Settings, where="here")


def test_later_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "s.toml", "zstd_level = 2\nrow_group_rows = 2\noutput = 'json'")
    environment = {
        "STATESTORE_CONFIG": str(path),
        "STATESTORE_ZSTD_LEVEL": "3",
        "STATESTORE_OUTPUT": "json",
        "STATESTORE_URI": "",
        "STATESTORE_PORT": "tcp://10.0.0.1:80",  # Kubernetes made it
    }
    arguments = {"output": "text", "store": None}
    resolved = resolve_settings(environment=environment, arguments=arguments)
    assert {one.name: (one.value, one.source) for one in resolved.each()} == {
        "store": (None, "default"),
        "output": ("text", "argument --output"),
        "table_format": (None, "default"),
        "row_group_rows": (2, f"file {path}"),
        "row_group_bytes": (2**25, "default"),
        "zstd_level": (3, "environment STATESTORE_ZSTD_LEVEL"),
        "local_cache": (None, "default"),
        "local_cache_bytes": (10 * 2**30, "default"),
        "parallel_streams": (16, "default"),
    }


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("STATESTORE_ZSTD_LEVEL", "x", "STATESTORE_ZSTD_LEVEL must be an integer, not 'x'"),
        ("STATESTORE_ZSTD_LEVEL", "0", "STATESTORE_ZSTD_LEVEL: zstd_level must be in 1..22, not 0"),
        (
            "STATESTORE_OUTPUT",
            "jsn",
            "STATESTORE_OUTPUT: output must be one of text, json, not 'jsn'",
        ),
        ("STATESTORE_CONFIG", "/nowhere", "the settings file /nowhere"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        resolve_settings(environment={variable: value}, arguments={})
