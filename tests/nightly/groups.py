"""The tests that ``make test`` leaves out, in groups."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

import pytest

from tests.syntax import ROOT

__all__ = [
    "DELTA",
    "FLINK",
    "GROUPS",
    "LEFT_OUT",
    "LEFT_OUT_TESTS",
    "SERVERS",
    "SPARKS",
    "group_of",
]

LEFT_OUT = frozenset({"long", "examples", "flink", "versions", "ceph"})
"""The marks of tests that ``make test`` does not run, or not with all examples or variants."""
LEFT_OUT_TESTS = pytest.StashKey[dict[str, str | None]]()
"""For the tests of a session that ``make test`` leaves out: their groups, by their ids."""

SPARKS = re.findall(r"^SPARKS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
RELEASES = tuple(
    f"build/release-{release['version']}/.ready"
    for release in tomllib.loads((ROOT / "releases.toml").read_text())["release"]
)
DELTA = (".venv/.delta",)
SERVERS = (*DELTA, ".venv/.s3", ".venv/.azurite", ".venv/.hdfs", ".venv/.iceberg", ".venv/.kafka")
FLINK = (*DELTA, ".venv/.flink", ".venv/.kafka", ".venv/pyflink")
_OLDEST_SPARK = f"build/spark-{SPARKS[0]}/.ready"

GROUPS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "core": (3, SERVERS),
    "delta": (1, DELTA),
    "faults": (2, (*DELTA, "gcc")),
    "interop": (5, (*FLINK, _OLDEST_SPARK)),
    "spark_checkpoints": (6, (*SERVERS, _OLDEST_SPARK)),
    "maintenance": (2, DELTA),
    "restore": (1, DELTA),
    "rows": (1, DELTA),
    "services": (6, (*SERVERS, ".venv/.s3proxy", ".venv/.go-programs", ".venv/.flink")),
    "monitoring": (1, (".venv/.prometheus", ".venv/.grafana")),
    "pages": (1, (*DELTA, "chromium", "chromedriver")),
    "publishing": (1, (*SERVERS, ".venv/duckdb-iceberg")),
    "spark": (1, (*SERVERS, "build/spark-client/.ready")),
    "streaming": (3, SERVERS),
    "programs": (4, (*SERVERS, ".venv/.go-programs", *RELEASES)),
    "real Flink: restore tests": (2, FLINK),
    "real Flink: drawn jobs": (3, FLINK),
    "real Flink: bootstrap": (2, FLINK),
    "real Flink: savepoints": (1, FLINK),
    "real Flink: export": (1, FLINK),
    "real Flink: contracts": (1, FLINK),
    "real Flink: other": (4, FLINK),
    "releases": (2, RELEASES),
    "wheel": (2, (*DELTA, ".venv/packaging")),
    "ceph": (1, (".venv/.ceph",)),
}
"""For each group of tests, the number of its shards and what it needs."""

_OF_FOLDER = {
    "contract": "spark_checkpoints",
    "delta": "delta",
    "faults": "faults",
    "power": "faults",
    "maintenance": "maintenance",
    "restore": "restore",
    "layers": "restore",
    "rows": "rows",
    "services": "services",
    "monitoring": "monitoring",
    "ui": "pages",
    "publishing": "publishing",
    "spark": "spark",
    "streaming": "streaming",
    "wheel": "wheel",
    **dict.fromkeys(
        ("races", "simulate", "fuzz", "damages", "protocol", "endurance"),
        "programs",
    ),
}
_OF_FLINK_FILE = {
    "test_restore_tests": "real Flink: restore tests",
    "test_real_drawn": "real Flink: drawn jobs",
    "test_real_bootstrap": "real Flink: bootstrap",
    "test_real_flink": "real Flink: savepoints",
    "test_real_export": "real Flink: export",
    "test_real_flink_rules": "real Flink: contracts",
}


def group_of(file: str, markers: Collection[str]) -> str | None:
    """Return the group of a test by its file and its marks; None if ``make test`` has it whole."""
    if LEFT_OUT.isdisjoint(markers):
        return None
    path = PurePosixPath(file)
    if "versions" in markers:
        return "releases"
    if "ceph" in markers:
        return "ceph"
    if "flink" in markers:
        return _OF_FLINK_FILE.get(path.stem, "real Flink: other")
    folder = path.parts[1]
    if folder == "interop":
        return "spark_checkpoints" if path.parts[2] == "spark" else "interop"
    return _OF_FOLDER.get(folder, "core")
