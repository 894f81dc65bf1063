from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.spark import session
from statestore.spark.java import JavaProblem
from statestore.spark.session import default_settings, java_home, spark_session
from tests.servers.jars import spark_home
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PACKAGED = Path(session.__file__).with_name("spark-defaults.conf")


def run(
    code: str, *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a separate interpreter, because a process starts Spark only once."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | (environ or {}),
    )


def test_the_documented_settings_are_the_actual_ones() -> None:
    assert (ROOT / "conf" / "spark-defaults.conf").read_bytes() == PACKAGED.read_bytes()


def test_every_setting_has_a_reason_above_it() -> None:
    paragraphs = PACKAGED.read_text().split("\n\n")
    with_settings = [p for p in paragraphs if any(not x.startswith("#") for x in p.splitlines())]
    assert len(with_settings) >= 5
    assert [p for p in with_settings if not p.startswith("# ")] == []


def test_parquet_needs_no_classes_of_delta() -> None:
    both, without = default_settings("delta"), default_settings("parquet")
    assert both.keys() - without.keys() == {
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
    }


def test_sockets_with_long_paths_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket can have only about a hundred bytes."""
    sockets = "spark.python.unix.domain.socket.enabled"
    for folder, found in (("/tmp", "true"), (str(tmp_path / ("x" * 60)), None)):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert default_settings().get(sockets) == found


def test_ctrl_c_ends_a_jvm_whose_start_hangs(tmp_path: Path) -> None:
    """As while it waits for packages. PySpark would wait, and forget the process."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-submit"
    script.write_text('#!/bin/sh\necho $$ > "$SPARK_HOME/pid"\nexec sleep 600\n')
    script.chmod(0o755)
    done = run(
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from statestore.spark.jars import launch_jvm\n"
        "def stop():\n"
        "    while not Path(sys.argv[1]).exists():\n"
        "        time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Thread(target=stop).start()\n"
        "launch_jvm({}, {})",
        str(tmp_path / "pid"),
        environ={"SPARK_HOME": str(tmp_path)},
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_the_settings_are_in_effect(spark: SparkSession) -> None:
    set_by_fixture = {"spark.sql.shuffle.partitions"}
    for name in default_settings().keys() - set_by_fixture:
        assert spark.conf.get(name) == default_settings()[name]


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_python_does_not_search_jars_of_packages(spark: SparkSession) -> None:
    """Otherwise the driver and each worker would list each jar's contents. Delta is importable."""

    def seen(_: int) -> tuple[list[str], str]:
        import delta.tables

        names = (Path(path).name for path in sys.path)
        found = [name for name in names if name.endswith(".jar") and "spark-core" not in name]
        return found, str(delta.tables.__file__)

    ((found, module),) = spark.sparkContext.parallelize([0], 1).map(seen).collect()
    assert found == seen(0)[0] == []
    assert Path(module).is_file()
    jars: Any = spark.sparkContext._jsc
    assert "io.delta_delta-spark" in jars.sc().listJars().mkString(" ")


def test_a_package_brings_no_jar_that_spark_has(spark: SparkSession) -> None:
    """Each start would resolve, copy and search it."""

    def without_version(jar: str) -> str:
        return re.sub(r"(_2\.\d+)?-[0-9][^-]*\.jar$", "", jar)

    sparks = {without_version(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
    urls = spark.sparkContext.getConf().get("spark.jars", "").split(",")
    jars = [Path(url).name.partition("_")[2] for url in urls]
    packages = {without_version(jar) for jar in jars}
    assert {"hadoop-client-api", "jackson-core"} <= sparks
    assert "delta-storage" in packages
    assert packages & sparks == set()


def test_delta_writes_and_reads(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    spark.range(10).coalesce(1).write.format("delta").save(url)
    assert spark.read.format("delta").load(url).count() == 10


def test_a_running_session_is_used_unchanged(spark: SparkSession) -> None:
    again = spark_session(app_name="other", master="local[7]", driver_memory="9g")
    assert again is spark
    assert again.sparkContext.master == "local[2]"


def test_an_unknown_table_format_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not 'iceberg'"):
        spark_session(table_format="iceberg")  # type: ignore[arg-type]


def test_a_missing_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        session, "find_java", lambda: JavaProblem("no Java was found", "apk add java")
    )
    with pytest.raises(
        MissingDependencyError, match=r"no Java was found; install .* with: apk add java"
    ):
        java_home()


WITHOUT_DELTA = """
from statestore import StateStore
from statestore.errors import MissingDependencyError
from statestore.spark.session import spark_session
import sys
conf = {
    "spark.jars.packages": "io.delta:delta-storage:" + sys.argv[1],
    "spark.python.daemon.module": "tests.spark.noted_daemon",
}
spark = spark_session(master="local[1]", table_format="parquet", extra_conf=conf)
print(spark.range(3).count(), flush=True)
print(*(path for path in sys.path if path.endswith(".jar")), flush=True)
store = StateStore.open(sys.argv[2], spark=spark, table_format="parquet")
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_keyed("u", "s", spark.range(1_000, numPartitions=2), key="id")
assert store.restore().keyed("u", "s").to_spark().toArrow().num_rows == 1_000
print("-- started", file=sys.stderr, flush=True)
try:
    spark_session(table_format="delta")
except MissingDependencyError as error:
    print(error)
spark._jvm.java.lang.System.err.println("an error in the JVM")
spark._jvm.java.lang.System.out.println("a line on its stdout")
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_the_start_is_quiet_and_later_output_is_not(tmp_path: Path) -> None:
    """Python also finds a user's package in a jar, and the store's tasks are silent."""
    noted = tmp_path / "noted"
    environ = {"NOTED": str(noted), "DAEMON": "pyspark.daemon", "PYTHONPATH": str(ROOT)}
    done = run(WITHOUT_DELTA, version("delta-spark"), str(tmp_path / "store"), environ=environ)
    assert done.returncode == 0, done.stderr
    assert noted.read_text() == ""
    count, jars, refusal = done.stdout.splitlines()
    assert count == "3"
    assert "io.delta_delta-storage-" in jars
    assert "started without Delta" in refusal
    assert done.stderr.splitlines() == [
        "-- started",
        "an error in the JVM",
        "a line on its stdout",
    ]


UNRESOLVED = """
import sys
from statestore.errors import MissingDependencyError
from statestore.spark.session import spark_session
ivy = {"spark.jars.ivySettings": sys.argv[1], "spark.jars.ivy": sys.argv[2]}
try:
    spark_session(master="local[1]", extra_conf=ivy)
except MissingDependencyError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_jar_that_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    repository = f"{tmp_path}/none/[artifact]-[revision].[ext]"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='empty'/><resolvers>"
        f"<filesystem name='empty'><artifact pattern='{repository}'/></filesystem>"
        "</resolvers></ivysettings>"
    )
    done = run(UNRESOLVED, str(settings), str(tmp_path / "ivy"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "cannot download Spark's packages (io.delta:delta-spark_4.2_2.13:4.4.0): unresolved "
        "dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found; check the network, or use "
        'table_format="parquet", which requires no jar\n'
    )


USED_MACHINE = """
import sys
from pathlib import Path
from statestore.spark import jars
from statestore.spark.session import spark_session
jars._cache_folder = lambda: Path(sys.argv[1])
own = {"spark.jars.packages": "own:thing:1"} if sys.argv[3:] else None
spark = spark_session(master="local[1]", extra_conf=own)
print(spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect())
print(spark.sparkContext._jsc.sc().listJars().mkString(" "))
print(spark._jvm.java.io.File(sys.argv[2]).length())
spark.stop()
"""


def add_package(repository: Path, group: str, name: str, revision: str, *, has_jar: bool) -> None:
    """Put the description of a package into a repository, and an empty jar."""
    folder = repository.joinpath(*group.split("."), name, revision)
    folder.mkdir(parents=True)
    (folder / f"{name}-{revision}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{revision}</version></project>"
    )
    if has_jar:
        with zipfile.ZipFile(folder / f"{name}-{revision}.jar", "w") as jar:
            jar.writestr("empty", "")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("own", [[], ["own"]], ids=["ours", "with a package of the user"])
def test_a_configured_machine_does_not_matter(own: list[str], tmp_path: Path) -> None:
    """Variables of another Spark, an offline mirror, a package whose jar Maven does not have, and a
    locale without UTF-8. A package that only Maven has is found.
    """
    delta = ("io.delta", "delta-spark_4.2_2.13", version("delta-spark"))
    maven = tmp_path / ".m2" / "repository"
    add_package(tmp_path / "the mirror", *delta, has_jar=True)
    add_package(maven, *delta, has_jar=False)
    add_package(maven, "own", "thing", "1", has_jar=True)
    shell = {
        "SPARK_HOME": "/nonexistent",
        "PYSPARK_PYTHON": "/nonexistent/python",
        "PYSPARK_DRIVER_PYTHON": "/nonexistent/python",
        "DEFAULT_ARTIFACT_REPOSITORY": (tmp_path / "the mirror").as_uri() + "/",
        "SPARK_SUBMIT_OPTS": f"-Duser.home={tmp_path}",
        "LC_ALL": "C",
    }
    text = tmp_path / "état 日本"
    text.write_text("1234")
    done = run(USED_MACHINE, str(tmp_path / "50 % of jars"), str(text), *own, environ=shell)
    assert done.returncode == 0, done.stderr
    workers, jars, length = done.stdout.splitlines()
    assert length == "4"
    assert workers == f"[{sys.executable!r}]"
    assert "/{}_{}-{}.jar".format(*delta) in jars
    assert ("/own_thing-1.jar" in jars) == bool(own)


@pytest.mark.spark
def test_another_failure_keeps_sparks_message() -> None:
    code = (
        "from statestore.spark.session import spark_session\n"
        "spark_session(master='local[1]', table_format='parquet', driver_memory='nonsense')"
    )
    done = run(code)
    assert done.returncode == 1
    assert "JAVA_GATEWAY_EXITED" in done.stderr
    assert "nonsense" in done.stderr


def test_a_second_session_of_a_jvm_reads_a_store(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses to register a Python data source in it, as the first session has it."""
    place = str(tmp_path / "store")
    for each in (spark, spark.newSession()):
        store = StateStore.open(place, spark=each, table_format="parquet")
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("o", "s", [{"k": 1, "v": 2}], key=["k"])
        rows = store.restore(parallelism=2).keyed("o", "s").to_spark().collect()
        assert [(row.k, row.v) for row in rows] == [(1, 2)]
