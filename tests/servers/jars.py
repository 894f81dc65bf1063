"""Fetch the jars of servers and of Spark's connectors from their published packages, for tests.

Spark's own resolver fetches them, so no other program is needed. Each set is fetched once and kept
in a folder of this Python environment. ``python -m tests.servers.jars`` fetches what ``make test``
needs of them; a test of the nightly fetches MirrorMaker.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import PySparkRuntimeError

from statestore.errors import MissingDependencyError
from statestore.spark.jars import launch_jvm, resolver_problem, resolver_settings, stop_jvm
from statestore.spark.session import java_environment

__all__ = [
    "BROKER",
    "CONNECTOR",
    "KAFKA_VERSION",
    "MIRROR_MAKER",
    "TOKEN_PROVIDER",
    "JarSet",
    "fetched",
    "jars_of",
    "spark_home",
]

KAFKA_VERSION = "4.1.0"


@dataclass(frozen=True)
class JarSet:
    """Packages that are resolved together: a folder name, Maven coordinates, and exclusions.

    ``wanted`` are prefixes of the names of the jars to use; if it is empty, all jars are used.
    """

    name: str
    packages: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


BROKER = JarSet(
    f"kafka-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
)
MIRROR_MAKER = JarSet(
    f"kafka-mirror-{KAFKA_VERSION}",
    (
        f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
# The connector requires a token provider of its own version, which some repositories lack. With
# plain text the previous version also works. So the two packages are resolved separately and
# combined.
CONNECTOR = JarSet(
    "spark-kafka-4.2.0",
    ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13",),
    ("org.apache.spark_spark-sql-kafka", "org.apache.kafka_kafka-clients", "org.apache.commons_"),
)
TOKEN_PROVIDER = JarSet(
    "spark-kafka-token-provider-4.1.0-preview1",
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",),
    wanted=("org.apache.spark_spark-token-provider",),
)


def jars_of(jars: JarSet) -> tuple[Path, ...]:
    """Return the jars of a set, fetched the first time; MissingDependencyError without them."""
    folder = Path(sys.prefix) / "share" / "statestore" / jars.name
    done = folder / "complete"
    if not done.exists():
        _fetch(jars, folder)
        done.touch()
    found = sorted((folder / "jars").glob("*.jar"))
    return tuple(jar for jar in found if not jars.wanted or jar.name.startswith(jars.wanted))


def spark_home() -> Path:
    """Return the folder of the Spark that is part of this environment's pyspark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingDependencyError("Spark is needed here: pip install pyspark")
    return Path(spec.origin).parent


def _fetch(jars: JarSet, folder: Path) -> None:
    java_environment("local")
    settings = {
        "spark.jars.packages": ",".join(jars.packages),
        "spark.jars.excludes": ",".join(jars.excluded),
        **resolver_settings(folder),
    }
    # The resolver keeps a copy of a jar that was interrupted, because it is the newest.
    shutil.rmtree(folder / "jars", ignore_errors=True)
    said = folder / "resolver.log"
    try:
        with said.open("wb") as log:  # hundreds of lines, useful after a failure
            pipes = {"stdout": log, "stderr": log}
            stop_jvm(launch_jvm(settings, pipes))
    except PySparkRuntimeError as error:
        raise MissingDependencyError(
            f"the jars of {', '.join(jars.packages)} could not be fetched "
            f"({resolver_problem(said.read_text(errors='replace')) or error}); check the network; "
            f"{said} has what Spark's resolver said"
        ) from error


def fetched(*sets: JarSet, folder: Path | None = None) -> int:
    """Fetch sets of jars, print their sizes, optionally copy the jars; return an exit code."""
    try:
        for jars in sets:
            found = jars_of(jars)
            print(f"{jars.name}: {len(found)} jars")
            if folder is not None:
                for jar in found:
                    shutil.copy(jar, folder / jar.name)
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def main(arguments: Sequence[str] = ()) -> int:
    """Fetch the broker and the connector, or copy the connector with ``--connector DIR``."""
    parser = argparse.ArgumentParser(description="Fetch jars of servers and connectors.")
    parser.add_argument("--connector", type=Path, metavar="DIR", help="copy the connector there")
    folder: Path | None = parser.parse_args(arguments).connector
    servers = () if folder else (BROKER,)
    return fetched(*servers, CONNECTOR, TOKEN_PROVIDER, folder=folder)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
