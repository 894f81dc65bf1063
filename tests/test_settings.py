from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pytest
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.format.manifest import TABLE_FORMATS
from statestore.parquet.writer import ParquetOptions
from statestore.settings import (
    ENVIRONMENT,
    Settings,
    SettingsTable,
    from_table,
    read_toml,
    resolve_settings,
)
from statestore.storage.local_cache import DEFAULT_LIMIT_BYTES
from tests.syntax import ROOT

T = TypeVar("T", bound=Struct)
DOCUMENTED = ROOT / "conf" / "statestore.toml"


class Topic(SettingsTable, frozen=True, kw_only=True):
    name: str
    partitions: Annotated[int, Meta(ge=1)] = 1


class Job(SettingsTable, frozen=True, kw_only=True):
    uid: str
    ratio: float
    parallelism: Annotated[int, Meta(ge=1, le=32768)] | None = None
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


def test_a_file_becomes_a_value(tmp_path: Path) -> None:
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
        ("", "'uid' is missing"),
        ("uid = 'u'", "'ratio' is missing"),
        ("uid = 1\nratio = 1", "uid must be text, not an integer"),
        ("uid = 'u'\nratio = 'x'", "ratio must be a number, not text"),
        ("uid = 'u'\nratio = true", "ratio must be a number, not true or false"),
        ("uid = 'u'\nratio = 1\nparallelism = true", "parallelism must be an integer, not true or"),
        ("uid = 'u'\nratio = 1\nparallelism = 0", "parallelism must be an integer >= 1"),
        ("uid = 'u'\nratio = 1\ndry = 1", "dry must be true or false, not an integer"),
        ("uid = 'u'\nratio = 1\nmode = 'onion'", "mode cannot be 'onion'; did you mean 'union'?"),
        ("uid = 'u'\nratio = 1\nmode = 'x'", "mode cannot be 'x'; it can be split, union"),
        ("uid = 'u'\nratio = 1\nmode = []", "mode must be text, not a list"),
        ("uid = 'u'\nratio = 1\ncolumns = 'a'", "columns must be a list, not text"),
        ("uid = 'u'\nratio = 1\ncolumns = ['a', 2]", "columns[1] must be text, not an integer"),
        ("uid = 'u'\nratio = 1\noptions = {a = 1}", "options[...] must be text, not an integer"),
        ("uid = 'u'\nratio = 1\ntopic = 'x'", "topic must be a table, not text"),
        ("uid = 'u'\nratio = 1\ntopic = {}", "'topic.name' is missing"),
        (
            "uid = 'u'\nratio = 1\ntopics = [{nmae = 'x'}]",
            "unknown setting 'topics[0].nmae'; did you",
        ),
        (
            "uid = 'u'\nratio = 1\ntopics = [{name = 'x', partitions = 0}]",
            "topics[0].partitions must be an integer >= 1",
        ),
        ("uid = 'u'\nratio = 1\nuidd = 'x'", "unknown setting 'uidd'; did you mean 'uid'?"),
        (
            "uid = 'u'\nratio = 1\nzzz = 'x'",
            "unknown setting 'zzz'; it can be columns, dry, ",
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


def test_file_and_class_have_the_same_settings() -> None:
    defaults = asdict(Settings())
    assert list(commented(DOCUMENTED.read_text())) == list(defaults)
    assert [*ENVIRONMENT, "storage_options"] == list(defaults)
    assert read(DOCUMENTED, Settings) == Settings()
    given = tomllib.loads(DOCUMENTED.read_text())
    assert given == {name: value for name, value in defaults.items() if value not in (None, {})}


def test_the_file_states_reason_unit_default_and_variable() -> None:
    paragraphs = DOCUMENTED.read_text().split("\n\n")[1:]
    each = resolve_settings(environment={}, arguments={}).each()
    assert [p for p in paragraphs if " = " in p][-len(each) :] == paragraphs[-len(each) :]
    for setting, paragraph in zip(each, paragraphs[-len(each) :], strict=True):
        *reason, brackets, line = paragraph.strip().splitlines()
        none = {"[]": "empty", "False": "false", "None": "none"}
        default = none.get(str(setting.default), setting.default)
        variable = ENVIRONMENT.get(setting.name, "no variable")
        told = f"{reason[-1]} {brackets}".replace(" # ", " ")
        assert told.endswith(f"[{setting.unit}; {default}; {variable}]")
        assert line.removeprefix("# ").startswith(f"{setting.name} = ")
        assert reason


def test_the_values_of_storage_options_are_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "s.toml", "storage_options = {secret = 'hunter2', key = 'k'}")
    resolved = resolve_settings(config=path, environment={}, arguments={})
    assert resolved.settings.storage_options == {"secret": "hunter2", "key": "k"}
    assert "hunter2" not in repr(resolved.each())
    assert resolved.each()[-1].value == ["key", "secret"]


def test_defaults_are_those_of_the_code() -> None:
    for name in ("row_group_rows", "row_group_bytes", "memory_bytes", "zstd_level"):
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
    unchanged = resolve_settings(environment={}, arguments={}).each()
    assert {one.name: (one.value, one.source) for one in resolved.each()} == {
        **{one.name: (one.value, "default") for one in unchanged},
        "output": ("text", "argument --output"),
        "row_group_rows": (2, f"file {path}"),
        "zstd_level": (3, "environment STATESTORE_ZSTD_LEVEL"),
    }


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "STATESTORE_ZSTD_LEVEL",
            "x",
            "STATESTORE_ZSTD_LEVEL: zstd_level must be an integer, not text",
        ),
        ("STATESTORE_ZSTD_LEVEL", "0", "STATESTORE_ZSTD_LEVEL: zstd_level must be an integer >= 1"),
        (
            "STATESTORE_OUTPUT",
            "jsn",
            "STATESTORE_OUTPUT: output cannot be 'jsn'; did you mean 'json'?",
        ),
        ("STATESTORE_CONFIG", "/nowhere", "the settings file /nowhere"),
        ("STATESTORE_RESTORE_RATE", "fast", "restore_rate: 'fast' is not a rate; write it as"),
        ("STATESTORE_QUERY_TIME_LIMIT", "soon", "query_time_limit: 'soon' is not a duration"),
        ("STATESTORE_READERS_URL", "https://me:word@host/db", "readers_url: credentials must not"),
        ("STATESTORE_KAFKA_SECONDS", "inf", "kafka_seconds must be a number <= 3600"),
        ("STATESTORE_VERIFY_FILES", "x", "verify_files must be true or false"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        resolve_settings(environment={variable: value}, arguments={})
