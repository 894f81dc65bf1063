"""Start Spark on one machine, for the demo, the tests, and jobs under plain Python.

:func:`spark_session` finds a Java, points Spark's Python workers at this interpreter, applies
``spark-defaults.conf`` (in this package; ``conf/spark-defaults.conf`` is the same file) and adds
Delta. With ``s3=True`` it also applies ``spark-s3.conf`` and enables Spark's access to ``s3a://``.
These files have all settings with their reasons; none is repeated here. The only other one is the
daemon of local Python workers (:mod:`statestore.spark.daemon`).

Under ``spark-submit`` and in a notebook a Spark session is already running, and its owner chose its
settings. It is used unchanged, and only checked for Delta. The same holds for a server of Spark
Connect, which ``SPARK_REMOTE`` names.

The output of Spark during its start (resolving jars, choosing loggers) is buffered. If the start
fails, it becomes part of the error; if it succeeds, the output is dropped. Later output of Spark,
including its stdout, goes to stderr, because stdout is reserved for the data of a command.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from statestore.errors import InvalidArgumentError, MissingDependencyError, StateStoreError
from statestore.extras import needs_extra
from statestore.spark.compat import has_delta, refuse_without_delta
from statestore.spark.jars import (
    EXCLUDES,
    IVY,
    IVY_SETTINGS,
    JARS_OF_SPARK,
    PACKAGES,
    launch_jvm,
    resolver_problem,
    resolver_settings,
)
from statestore.spark.java import JavaProblem, find_java
from statestore.spark.workers import without_idle_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkContext

_DAEMON = "spark.python.daemon.module"
_SOCKETS = "spark.python.unix.domain.socket.enabled"
# A socket's path has at most 107 bytes (104 on macOS); Spark's file name uses about 45 of them.
_LONGEST_SOCKET_FOLDER = 56
DELTA_CLASSES = ("io.delta.", "org.apache.spark.sql.delta.")
NOTE_LINES = 20


def spark_session(
    *,
    app_name: str = "statestore",
    master: str = "local[*]",
    table_format: Literal["delta", "parquet"] | None = None,
    driver_memory: str | None = None,
    extra_conf: Mapping[str, str] | None = None,
    s3: bool = False,
) -> SparkSession:
    """Return a Spark session, started on this machine unless one is running or is remote.

    ``StateStore.open(…, spark=…)`` passes a store's credentials to Spark; no setting holds one. All
    arguments except ``table_format`` have no effect if Spark is already running.

    Args:
        app_name: the name of the application.
        master: where Spark runs; by default on all cores of this machine.
        table_format: ``delta`` lets Spark read and write ``format("delta")``; ``parquet`` needs no
            jar. By default it is ``delta`` if the extra ``delta-spark`` is installed and Delta has
            a jar for this Spark. A store writes its Delta tables in either case.
        driver_memory: the memory of the driver, such as ``"2g"``. It overrides
            ``spark-defaults.conf``.
        extra_conf: settings that override ``spark-defaults.conf``. Your own packages in
            ``spark.jars.packages`` are fetched in addition to Delta's, and Python finds the Python
            code in them. A package that the repository lacks comes from ``~/.m2``.
        s3: lets Spark itself read and write ``s3a://``, for example with
            ``spark.read.format("delta")`` for a table in a bucket. A store does not need it. Its
            jars (690 MB) are fetched the first time.

    Returns:
        The session.

    Raises:
        MissingDependencyError: when Java, the extra ``delta-spark``, or a Delta jar for this Spark
            is missing. Also when a jar cannot be fetched or is damaged, when the running session
            was started without Delta, and when pyspark-client has no URL of a server.
        InvalidArgumentError: for another ``table_format``.
    """
    if table_format not in ("delta", "parquet", None):
        raise InvalidArgumentError(
            f'table_format must be "delta" or "parquet", not {table_format!r}'
        )
    if table_format == "delta":
        refuse_without_delta()
    if is_remote() or "SPARK_REMOTE" in os.environ:
        return _with_dependencies(_remote_session(), table_format)
    if _is_running():
        return _with_dependencies(SparkSession.Builder().getOrCreate(), table_format)
    if table_format is None:
        table_format = "delta" if has_delta() else "parquet"
    settings = default_settings(table_format)
    if master.startswith("local"):  # elsewhere, a daemon may start before it has this package
        settings[_DAEMON] = "statestore.spark.daemon"
    if s3:
        settings |= _parse_settings("spark-s3.conf")
    if driver_memory is not None:
        settings["spark.driver.memory"] = driver_memory
    for name, value in (extra_conf or {}).items():
        packages = name == PACKAGES and settings.get(PACKAGES)
        settings[name] = f"{packages},{value}" if packages else value
    builder = SparkSession.Builder().appName(app_name).master(master)
    if table_format == "delta":
        builder = _add_packages(builder, settings.pop(PACKAGES, ""))
    for name, value in settings.items():
        builder = builder.config(name, value)
    java_environment(master)
    own = dict(builder._options).get(PACKAGES)
    if own and not {IVY, IVY_SETTINGS} & set(extra_conf or {}):
        resolver = resolver_settings()
        if not {PACKAGES, EXCLUDES} & set(extra_conf or {}):
            resolver[EXCLUDES] = JARS_OF_SPARK
        for name, value in resolver.items():
            builder = builder.config(name, value)
    session = _start_session(builder)
    # Packages that others asked for may contain Python code.
    if PACKAGES not in (extra_conf or {}) and session.conf.get(PACKAGES, None) == own:
        _hide_jars(session.sparkContext)
    return session


def java_home() -> Path:
    """Return the home of a Java that runs Spark; raise :class:`MissingDependencyError` for none."""
    answer = find_java()
    if isinstance(answer, JavaProblem):
        raise MissingDependencyError(str(answer))
    return answer.path


def default_settings(table_format: str = "delta") -> dict[str, str]:
    """Return ``spark-defaults.conf`` as a mapping; for Parquet, without settings of Delta.

    If the path of the temporary folder is too long for a socket's name, Spark communicates with
    Python over TCP, its own default.
    """
    settings = _parse_settings("spark-defaults.conf")
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_SOCKET_FOLDER:
        del settings[_SOCKETS]
    if table_format == "delta":
        return settings
    return {name: value for name, value in settings.items() if not value.startswith(DELTA_CLASSES)}


def main() -> int:
    """Start and stop Spark once, which fetches Delta's jar; return the exit code.

    With the argument ``s3`` it also fetches the jars for ``s3a://``.
    """
    try:
        spark_session(master="local[1]", table_format="delta", s3="s3" in sys.argv[1:]).stop()
    except StateStoreError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _add_packages(builder: SparkSession.Builder, packages: str) -> SparkSession.Builder:
    """Return the builder of a session with Delta's packages and the given other packages."""
    with needs_extra("delta-spark", "a Spark session with Delta"):
        from delta import configure_spark_with_delta_pip
    return configure_spark_with_delta_pip(builder, packages.split(",") if packages else None)


def _parse_settings(name: str) -> dict[str, str]:
    text = files("statestore.spark").joinpath(name).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def _remote_session() -> SparkSession:
    """Return the session of Spark Connect that is active, or one of the server in SPARK_REMOTE."""
    active = SparkSession.getActiveSession() if is_remote() else None
    try:
        return active or SparkSession.Builder().getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "CONNECT_URL_NOT_SET":
            raise
        raise MissingDependencyError(
            "pyspark-client cannot start Spark: set SPARK_REMOTE to the URL of a server of Spark "
            "Connect (sc://host:15002), or install pyspark"
        ) from error


def _is_running() -> bool:
    from pyspark import SparkContext  # pyspark-client has none

    # With this variable spark-submit tells the Python process about the JVM that it started.
    return SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _with_dependencies(spark: SparkSession, table_format: str | None) -> SparkSession:
    """Return ``spark`` if it has the dependencies of ``table_format``."""
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog", "")
    if table_format == "delta" and not (catalog or "").startswith(DELTA_CLASSES):
        raise MissingDependencyError(
            "the running Spark session was started without Delta: start it with the settings "
            'of conf/spark-defaults.conf and Delta\'s package, or use table_format="parquet"'
        )
    return spark


def java_environment(master: str) -> None:
    """Set the variables that Spark needs: its Java, its home, its workers' Python, and UTF-8."""
    # An unsuitable JAVA_HOME is replaced: Spark would fail on it with a stack trace.
    os.environ["JAVA_HOME"] = str(java_home())
    # A SPARK_HOME of another Spark is also replaced: its JVM does not fit this pyspark.
    if home := _home_of_pyspark():
        os.environ["SPARK_HOME"] = str(home)
    # Python uses UTF-8 in this locale, but Java reads the name of no file that is not ASCII.
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"
    # Otherwise the workers start with the system's python3, which has no pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # Workers on this machine need the same packages as this process.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # The machine's own name often does not resolve, or resolves to the address of a VPN.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _home_of_pyspark() -> Path | None:
    """Return the Spark home of the imported pyspark: inside its package, or around it."""
    package = Path(pyspark.__file__).resolve().parent
    for home in (package / "spark-distribution", package, package.parent.parent):
        if (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir():
            return home
    return None


def _start_session(builder: SparkSession.Builder) -> SparkSession:
    """Start the JVM with its output buffered, then the session in it."""
    from pyspark import SparkContext

    options: dict[str, str] = builder._options
    output = _Output()
    try:
        if SparkContext._gateway is None:  # an earlier session of this process may have a JVM
            pipes = {"stdout": output.write_end, "stderr": output.write_end}
            SparkContext._ensure_initialized(gateway=launch_jvm(options, pipes))
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        text = output.finished_text()
        if problem := resolver_problem(text):
            raise MissingDependencyError(
                f"cannot download Spark's packages ({options.get(PACKAGES, '')}): {problem}; "
                'check the network, or use table_format="parquet", which requires no jar'
            ) from error
        error.add_note("\n".join(text.splitlines()[-NOTE_LINES:]))
        raise
    finally:
        output.release()


def _hide_jars(context: SparkContext) -> None:
    """Remove the jars of Spark's packages from Python's path, here and in Spark's Python workers.

    Spark adds them because some packages keep Python code in their jars. Delta's Python code is
    installed, and its dependencies have none. But each new worker would list the contents of dozens
    of jars repeatedly, which takes as long as everything else that it does before its first task.
    """
    from pyspark import SparkFiles

    names = context._python_includes or []
    context._python_includes = [name for name in names if not name.endswith(".jar")]
    root = Path(SparkFiles.getRootDirectory())
    jars = {str(root / name) for name in names if name.endswith(".jar")}
    sys.path[:] = [path for path in sys.path if path not in jars]


class _Output:
    """The output of the JVM: buffered until :meth:`release`, then passed on to stderr."""

    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self._held: list[bytes] = []
        self._passing = threading.Event()
        # A daemon thread: the JVM keeps the other end open for as long as this process lives.
        self._pump = threading.Thread(target=self._run, args=(read_end,), daemon=True)
        self._pump.start()
        self._open = True

    def _run(self, read_end: int) -> None:
        with os.fdopen(read_end, "rb") as lines:
            for line in without_idle_workers(lines):
                if self._passing.is_set():
                    # Not sys.stderr: its lock may be gone during interpreter shutdown.
                    os.write(2, line)
                else:
                    self._held.append(line)

    def finished_text(self) -> str:
        """Return the complete output of a JVM that has ended."""
        self._close()
        self._pump.join(timeout=10)
        return b"".join(self._held).decode(errors="replace")

    def release(self) -> None:
        """Pass on all later output, and drop the earlier output."""
        self._passing.set()
        self._held.clear()
        self._close()

    def _close(self) -> None:
        # This process's copy of the write end: while it is open, the reader sees no end of file.
        if self._open:
            self._open = False
            os.close(self.write_end)


if __name__ == "__main__":
    raise SystemExit(main())
