"""Run a real MirrorMaker 2 for tests: the program of Kafka's published jars, between two brokers.

::

    with mirror_maker(directory, source.bootstrap, target.bootstrap) as process:
        ...  # topics of the source appear at the target as "A.orders"

The source has the alias A and the target B. Intervals are as short as MirrorMaker allows. In the
directory of an earlier run the log is overwritten; MirrorMaker keeps its state in the brokers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from statestore.spark.session import java_home
from tests.servers.jars import MIRROR_MAKER, jars_of
from tests.servers.process import SHORT_LIVED_JVM, running

__all__ = ["LOG", "mirror_maker"]

LOG, PROPERTIES = "mirror-maker.log", "mm2.properties"
_JVM = ("-Xmx512m", *SHORT_LIVED_JVM)
_ONE_BROKER = {
    f"{topic}replication.factor": 1
    for topic in (
        *("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic."),
        *("offset.storage.", "status.storage.", "config.storage."),
    )
}
_FAST = {
    "offset.storage.partitions": 1,
    "status.storage.partitions": 1,
    "emit.heartbeats.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "emit.checkpoints.interval.seconds": 1,
    "refresh.topics.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
    # Of the worker, which is configured with its target. It need not scan all jars for plugins.
    "B.offset.flush.interval.ms": 500,
    "B.plugin.discovery": "service_load",
}


@contextmanager
def mirror_maker(
    directory: Path, source: str, target: str, settings: Mapping[str, object] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Replicate all topics and groups from one broker to another, until the block ends.

    It is then killed. ``settings`` are added to MirrorMaker's properties. Raises
    MissingDependencyError without Java or its jars.
    """
    directory.mkdir(parents=True, exist_ok=True)
    properties = {
        "clusters": "A,B",
        "A.bootstrap.servers": source,
        "B.bootstrap.servers": target,
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": ".*",
        "A->B.groups": ".*",
        **_ONE_BROKER,
        **_FAST,
        **(settings or {}),
    }
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    (directory / PROPERTIES).write_text(text)
    classpath = ":".join(map(str, jars_of(MIRROR_MAKER)))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    java = [str(java_home() / "bin" / "java"), *_JVM, "-cp", classpath]
    with running([*java, main, PROPERTIES], directory=directory, log=LOG) as process:
        yield process
