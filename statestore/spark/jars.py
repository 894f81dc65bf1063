"""The download of jars by Spark's own resolver: its repository, its cache, and its errors.

By default the resolver first searches ``~/.m2``. Maven may have left the description of a package
there without its jar; the resolver then fails although the repository has both. It also stores jars
in ``~/.ivy2*``, which it shares with all other Spark installations of the user. Here it searches
``~/.m2`` only for packages that the repository lacks, and stores jars in a folder of this Python
environment.

Java ignores ``HTTPS_PROXY`` and ``NO_PROXY``, which pip uses. A JVM that fetches packages is given
the proxy as system properties, which are removed afterwards: Spark's own connections never use it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr
from zipfile import is_zipfile

from pyspark import SparkConf

from statestore.errors import MissingDependencyError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

PACKAGES = "spark.jars.packages"
IVY, IVY_SETTINGS = "spark.jars.ivy", "spark.jars.ivySettings"
EXCLUDES = "spark.jars.excludes"
# Spark has these dependencies of packages in its own jars, and loads their classes from there.
JARS_OF_SPARK = ",".join(
    (
        *("com.fasterxml.jackson.*:*", "com.google.code.findbugs:*", "org.apache.logging.log4j:*"),
        *("org.apache.hadoop:hadoop-client-*", "org.apache.parquet:*", "org.roaringbitmap:*"),
        "org.slf4j:*",
    )
)
# Spark's own environment variable for a mirror, and its default.
MIRROR, CENTRAL = "DEFAULT_ARTIFACT_REPOSITORY", "https://repo1.maven.org/maven2/"
# The resolver's messages about a jar that it could not get.
_NOT_RESOLVED = re.compile(r"RuntimeException: \[((?:unresolved dependency|download failed).*)\]")
_NO_ANSWER = re.compile(r"^\s*Server access error at url (.+)$", re.MULTILINE)
# Java's own default, which nonProxyHosts replaces.
_NEVER_PROXIED = ("localhost", "127.*", "[::1]")
_SETTINGS = """<ivysettings>
  <settings defaultResolver="repository-first"/>
  <resolvers>
    <chain name="repository-first" returnFirst="true">
      <ibiblio name="central" m2compatible="true" usepoms="true" root={root}/>
      <ibiblio name="local-m2" m2compatible="true" usepoms="true"
        root="file:${{user.home}}/.m2/repository/"/>
    </chain>
  </resolvers>
</ivysettings>
"""


def resolver_settings(folder: Path | None = None) -> dict[str, str]:
    """Return the settings with which Spark resolves packages from the repository first.

    Args:
        folder: The cache of jars; by default a folder of this Python environment, or of the user's
            cache if the environment is read-only.

    Returns:
        Settings of Spark. The settings file that one of them names is written here.
    """
    folder = folder or _cache_folder()
    text = _SETTINGS.format(root=quoteattr(os.environ.get(MIRROR) or CENTRAL))
    file = folder / "ivysettings.xml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            # Replaced atomically: another process may be reading it.
            new = file.with_suffix(f".{os.getpid()}")
            new.write_text(text, encoding="utf-8")
            new.replace(file)
    except OSError as error:
        raise _no_folder_error(f"{folder} ({error.strerror})") from error
    # As a URL: Spark parses a path as a URL, and one with a space or '%' would be invalid.
    return {IVY: str(folder), IVY_SETTINGS: file.as_uri()}


def launch_jvm(settings: Mapping[str, str], pipes: Mapping[str, Any]) -> JavaGateway:
    """Start a JVM that fetches the packages in ``settings``, if necessary through a proxy.

    Args:
        settings: Settings of Spark.
        pipes: Where the JVM's output goes, as arguments of ``subprocess.Popen``.

    Returns:
        The connection to the JVM.

    Raises:
        MissingDependencyError: A fetched jar is damaged.
        PySparkRuntimeError: The JVM did not start, or did not get a package.
    """
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    proxy = proxy_properties() if settings.get(PACKAGES) else {}
    with _submit_options(f"-D{name}={value}" for name, value in proxy.items()):
        gateway = _launch_gateway(conf, pipes)
    system: Any = gateway.jvm.java.lang.System
    for name in proxy:
        system.clearProperty(name)
    try:
        refuse_damaged_jars((system.getProperty("spark.jars") or "").split(","))
    except MissingDependencyError:
        stop_jvm(gateway)
        raise
    return gateway


def _launch_gateway(conf: SparkConf, pipes: Mapping[str, Any]) -> JavaGateway:
    """Start the JVM; if Ctrl-C ends the wait for it, end the JVM too.

    PySpark forgets a JVM whose start is interrupted. It would run for ever: a JVM ends with this
    process only once it has started.
    """
    from pyspark import java_gateway  # pyspark-client has none

    with _recorded_processes(vars(java_gateway)) as started:
        try:
            gateway: JavaGateway = java_gateway.launch_gateway(  # type: ignore[no-untyped-call]
                conf, dict(pipes)
            )
        except BaseException:
            for process in started:
                process.kill()
                process.communicate()
            raise
    return gateway


@contextmanager
def _recorded_processes(names: dict[str, Any]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of the processes that PySpark's module with these names starts for its JVM."""
    started: list[subprocess.Popen[bytes]] = []
    popen = names["Popen"]

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    names["Popen"] = start
    try:
        yield started
    finally:
        names["Popen"] = popen


def stop_jvm(gateway: Any) -> None:
    """End a JVM that :func:`launch_jvm` started, and wait for its process."""
    gateway.shutdown()
    gateway.proc.communicate()  # otherwise the pipe to it stays open


def proxy_properties() -> dict[str, str]:
    """Return Java's system properties for the proxies that Python uses; empty for none.

    These are the proxies in ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` or, on macOS and
    Windows, in the system's settings. A proxy's user and password are not passed on: every user of
    the machine could read them in the list of processes.
    """
    proxies = getproxies()
    properties: dict[str, str] = {}
    for scheme in ("http", "https"):
        if text := proxies.get(scheme):
            proxy = urlsplit(text if "://" in text else f"http://{text}")
            properties[f"{scheme}.proxyHost"] = proxy.hostname or ""
            properties[f"{scheme}.proxyPort"] = str(proxy.port or 80)
    if properties:
        hosts = [host.strip().lstrip(".") for host in proxies.get("no", "").split(",")]
        direct = [
            *_NEVER_PROXIED,
            *(name for host in hosts if host for name in (host, f"*.{host}")),
        ]
        properties["http.nonProxyHosts"] = "|".join(direct)  # Java uses it for https, too
    return properties


def refuse_damaged_jars(urls: Iterable[str]) -> None:
    """Raise MissingDependencyError for a jar that is incomplete, which Java would ignore silently.

    A copy of a jar that was interrupted is newer than its original, so the resolver keeps it.
    """
    for url in urls:
        jar = Path(unquote(urlsplit(url).path))
        if jar.suffix == ".jar" and jar.is_file() and not is_zipfile(jar):
            raise MissingDependencyError(
                f"{jar} is damaged: its download was interrupted, or the disk was full; delete the "
                f"folder {jar.parent.parent}, and the next start fetches its jars again"
            )


def resolver_problem(text: str) -> str | None:
    """Return the resolver's reason why it did not get a jar.

    Args:
        text: The complete output of Spark.

    Returns:
        The reason; None if something else went wrong.
    """
    problem = _NOT_RESOLVED.search(text)
    if problem is None:
        return None
    no_answer = _NO_ANSWER.search(text)
    return problem[1] if no_answer is None else f"{problem[1]}, no answer from {no_answer[1]}"


def _cache_folder() -> Path:
    own = Path(sys.prefix) / "share" / "statestore" / "ivy"
    first = next(place for place in (own, *own.parents) if place.exists())
    if os.access(first, os.W_OK):
        return own
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:  # no HOME, and a user whom the system does not know
        raise _no_folder_error(f"{own} (read-only), and this user has no home") from error
    return folder / "statestore" / "ivy"


def _no_folder_error(place: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"Spark's packages cannot be stored in {place}: set XDG_CACHE_HOME to a folder that this "
        'user can write, or use table_format="parquet", which needs no jar'
    )


@contextmanager
def _submit_options(options: Iterable[str]) -> Iterator[None]:
    """Add options to the command line of a JVM that is started in this block.

    The user's own options come last, so that they have priority.
    """
    name = "SPARK_SUBMIT_OPTS"
    before = os.environ.get(name)
    os.environ[name] = " ".join((*options, before or ""))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
