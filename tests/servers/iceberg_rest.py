"""Run a real Iceberg REST catalog on this machine for tests: the server of Iceberg's own tests.

::

    with iceberg_rest(directory) as server:
        catalog = load_catalog("rest", **server.options)

``python -m tests.servers.iceberg_rest`` fetches the jars. The server keeps its tables in a SQLite
database in its directory, and listens only on a free port of the loopback address. It is killed
when the block ends, and also if this process dies.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import MissingDependencyError
from statestore.spark.session import java_home
from tests.servers.jars import JarSet, fetched, jars_of, spark_home
from tests.servers.process import SHORT_LIVED_JVM, free_ports, log_tail, running, wait_for
from tests.servers.published import PublishedJar

__all__ = ["ICEBERG_VERSION", "SPARK_RUNTIME", "IcebergRest", "fetch_server", "iceberg_rest"]

ICEBERG_VERSION = "1.11.0"
_JETTY = "12.1.14"
_LIBRARIES = JarSet(
    f"iceberg-rest-{ICEBERG_VERSION}",
    (
        f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}",
        f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
        f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY}",
        f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY}",
        "org.slf4j:slf4j-simple:2.0.17",
        "org.xerial:sqlite-jdbc:3.54.1.0",
    ),
)
_TESTS = (
    PublishedJar(
        "org.apache.iceberg",
        "iceberg-open-api",
        ICEBERG_VERSION,
        "b0aa8636d88c24976d552ac9b3075a1315dc1ccd4fa6ed95b365901842664316",
        "test-fixtures",
    ),
    PublishedJar(
        "org.apache.iceberg",
        "iceberg-core",
        ICEBERG_VERSION,
        "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3",
    ),
)
SPARK_RUNTIME = PublishedJar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.0_2.13",
    ICEBERG_VERSION,
    "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc",
    None,
)
"""Iceberg in Spark 4.0, for the tests of other readers."""
LOG = "iceberg-rest.log"
START_SECONDS = 60
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class IcebergRest:
    """A running catalog."""

    uri: str

    @property
    def options(self) -> dict[str, str]:
        """The properties of the catalog for pyiceberg."""
        return {"type": "rest", "uri": self.uri}


@contextmanager
def iceberg_rest(directory: Path) -> Iterator[IcebergRest]:
    """Run a catalog until the block ends; its warehouse is in ``directory``.

    Raises MissingDependencyError without the jars, or StorageError with the end of its log.
    """
    # Its tables' metadata is written with Hadoop's client, which is part of Spark.
    hadoop = sorted((spark_home() / "jars").glob("hadoop-client-*.jar"))
    jars = [*(jar.file for jar in _TESTS), *jars_of(_LIBRARIES), *hadoop]
    directory.mkdir(parents=True, exist_ok=True)
    [port] = free_ports(1)
    command = [str(java_home() / "bin" / "java"), "-Xmx256m", *SHORT_LIVED_JVM]
    command += ["-cp", ":".join(map(str, jars)), "org.apache.iceberg.rest.RESTCatalogServer"]
    environment = os.environ | {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{directory}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{directory}/warehouse",
    }
    uri = f"http://127.0.0.1:{port}"

    def ask() -> None:
        _HTTP.open(f"{uri}/v1/config", timeout=10).close()

    with running(command, directory=directory, log=LOG, environment=environment) as process:
        if not wait_for(process, ask, seconds=START_SECONDS):
            raise log_tail(directory / LOG, "the Iceberg catalog")
        yield IcebergRest(uri)


def fetch_server() -> int:
    """Fetch all jars of the server; return an exit code."""
    try:
        for jar in _TESTS:
            print(f"{jar.file.name}: {jar.file.stat().st_size:,} bytes")
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return fetched(_LIBRARIES)


if __name__ == "__main__":
    raise SystemExit(fetch_server())
