"""The contract of a Spark query: of its checkpoint location, of its plan, or of its import.

All are read from files that Spark wrote: a plan is a location without rows, which Spark writes to
a temporary folder (:func:`statestore.interop.spark.planned_query.planned_location`). The record of
an import has the files of its location. Reading them needs no JVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame

from statestore.contract.model import (
    Form,
    JobContract,
    OperatorContract,
    SourceContract,
    StateContract,
)
from statestore.contract.spark_rules import CHECKPOINT_FORMAT, MODES, OFFSET_LOG
from statestore.errors import DamagedFileError
from statestore.format.manifest import name_of
from statestore.interop.spark.import_record import QueryRecord
from statestore.interop.spark.location import NO_END, BatchPlan, CheckpointLocation
from statestore.interop.spark.operator_reader import (
    SHUFFLE_PARTITIONS,
    Operator,
    StoredSchema,
    read_schemas,
    schema_files,
)
from statestore.interop.spark.parts import find_operator_kind
from statestore.interop.spark.planned_query import planned_location
from statestore.restore.restored import RestoredCheckpoint
from statestore.spark.compat import COMMAND_INSTEAD, refuse_connect
from statestore.storage import open_storage
from statestore.streaming.planned import relation_options, streaming_sources

FILES, KAFKA, _DELTA, NUMBERS = "files", "Kafka", "Delta", "numbers"
_DESCRIPTIONS = re.compile("/(_metadata|_stateSchema)/")
_FILE_FORMATS = ("json", "csv", "parquet", "orc", "text", "xml", "avro")
_KINDS = {
    **dict.fromkeys(_FILE_FORMATS, FILES),
    **dict.fromkeys(("rate", "socket", "memory"), NUMBERS),
    "kafka": KAFKA,
    "delta": _DELTA,
}


def contract_of_location(location: CheckpointLocation, batch: int | None = None) -> JobContract:
    """Return the contract of a query's checkpoint location at a committed micro-batch.

    Args:
        location: The location.
        batch: The micro-batch, by default the newest.

    Raises:
        InvalidArgumentError: If this is not a checkpoint location, or has no such micro-batch.
        DamagedFileError, MissingFileError or FormatVersionError: For an unreadable description.
    """
    number = location.batch(batch)
    job = _read_job(location, number)
    sources = tuple(_stored_sources(location, location.plan(number)))
    return replace(job, sources=sources)


def contract_of_import(restored: RestoredCheckpoint) -> JobContract:
    """Return the contract of a query whose state was imported into a store.

    Args:
        restored: A checkpoint that continues an import, and has the rows and bytes of its states.

    Raises:
        InvalidArgumentError: If the checkpoint was not imported from a checkpoint location.
    """
    record = QueryRecord.from_checkpoint(restored)
    with TemporaryDirectory(prefix="statestore-") as folder:
        storage = open_storage(folder)
        for name, content in record.logs:
            storage.put_if_absent(name, content)
        for number in {store.operator for store in record.stores}:
            storage.put_if_absent(f"state/{number}/0/empty", b"")  # the folder of a partition
        job = contract_of_location(CheckpointLocation(storage), record.imported_batch)
    entries = {name_of(entry): entry for entry in restored.manifest.keyed}

    def with_figures(operator: OperatorContract, state: StateContract) -> StateContract:
        entry = entries.get((f"{operator.name}-{operator.id}", state.name))
        contents = None if entry is None else entry.contents
        return replace(
            state,
            rows=None if contents is None else contents.rows,
            bytes=None if entry is None else entry.size_bytes,
        )

    operators = (
        replace(each, states=tuple(with_figures(each, state) for state in each.states))
        for each in job.operators
    )
    return replace(job, operators=tuple(operators))


def contract_of_query(
    query: DataFrame, output_mode: str, old: JobContract, settings: Mapping[str, str] | None = None
) -> JobContract:
    """Return the contract of a query that would continue an old one; no row is read.

    Its settings are ``settings``, and the ones that the job set after the session began.

    Args:
        query: The streaming DataFrame.
        output_mode: The output mode that the query will have.
        old: The contract of the state that it continues, whose settings win over the session's.
        settings: The settings with which the session began.

    Raises:
        InvalidArgumentError: If the DataFrame is not streaming or is of Spark Connect, or if Spark
            does not accept it.
        DamagedFileError: If Spark has written an unknown description.
    """
    refuse_connect(query, "checking a query", COMMAND_INSTEAD)
    conf = query.sparkSession.conf
    first = dict(query.sparkSession.sparkContext.getConf().getAll())
    chosen = {name: value for name, value in conf.getAll.items() if first.get(name) != value}
    chosen |= settings or {}
    fixed = old.settings if old.engine == "spark" else {}
    kept = {name: value for name, value in fixed.items() if not name.endswith(MODES)}
    own = {name: str(chosen.get(name, value)) for name, value in kept.items()}
    if kept:  # the log's version stays; the session decides the checkpoints' version
        own[OFFSET_LOG] = kept[OFFSET_LOG]
        own[CHECKPOINT_FORMAT] = str(conf.get(CHECKPOINT_FORMAT))
    partitions = old.partitions or int(conf.get(SHUFFLE_PARTITIONS) or 1)
    with planned_location(query, output_mode, kept, partitions) as location:
        job = _read_job(location, 0)
    return replace(
        job,
        version=spark_version,
        partitions=int(chosen.get(SHUFFLE_PARTITIONS, partitions)),
        settings={**job.settings, **own},
        sources=tuple(_planned_sources(query)),
    )


def _read_job(location: CheckpointLocation, batch: int) -> JobContract:
    plan = location.plan(batch)
    has_state = bool(location.storage.list("state"))
    operators = location.operators(batch) if has_state else ()
    counts = [store.partitions for operator in operators for store in operator.stores]
    settings = dict(plan.settings)
    partitions = settings.pop(SHUFFLE_PARTITIONS, None)
    for operator in operators:
        settings |= _modes(operator)
    return JobContract(
        engine="spark",
        partitions=max(counts, default=None if partitions is None else int(partitions)),
        settings={
            **settings,
            OFFSET_LOG: "1" if plan.sources is None else "2",
            CHECKPOINT_FORMAT: str(location.commit(batch).version),
        },
        operators=tuple(_operator(location, operator) for operator in operators),
    )


def _modes(operator: Operator) -> dict[str, str]:
    """Return the modes of a transformWithState, as settings of the job."""
    document = json.loads(operator.description.partition(b"\n")[2])
    properties = json.loads(document.get("operatorPropertiesJson") or "{}")
    known = [mode for mode in MODES if mode in properties]
    return {f"operator {operator.number}: {mode}": str(properties[mode]) for mode in known}


def _operator(location: CheckpointLocation, operator: Operator) -> OperatorContract:
    kind = find_operator_kind(operator.name)
    return OperatorContract(
        id=str(operator.number),
        name=operator.name,
        kind=operator.name if kind is None else kind.does,
        states=tuple(_states(location, operator)),
    )


def _states(location: CheckpointLocation, operator: Operator) -> Iterator[StateContract]:
    for store in operator.stores:
        *older, newest = (
            {schema.family: schema for schema in _schemas(location, name)}
            for name in schema_files(operator, store.name)
        )
        if not operator.variables:
            size = _bytes_of(location, operator, store.name)
            for family, schema in newest.items():
                name = family if operator.has_families else store.name
                yield StateContract(name=name, kind="store", form=_form(schema), bytes=size)
        for variable in operator.variables:
            if variable.name in newest:
                form = {**_form(newest[variable.name]), "ttl": variable.has_ttl}
                earlier = [schemas[variable.name] for schemas in older if variable.name in schemas]
                values = [columns_of_struct(schema.value) for schema in earlier]
                if changed := [value for value in values if value != form["value"]]:
                    form["older"] = changed
                name = "timers" if variable.kind == "TimerState" else variable.name
                yield StateContract(name=name, kind=variable.kind, form=form)


def _schemas(location: CheckpointLocation, name: str) -> tuple[StoredSchema, ...]:
    content = location.read_content(name)
    try:
        return read_schemas(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{location.url}/{name} is damaged: {error}. Replace it with an intact copy"
        ) from error


def _bytes_of(location: CheckpointLocation, operator: Operator, store: str) -> int | None:
    """Return the bytes of a store's rows; None if it has none, as in a plan."""
    folder = "" if store == "default" else f"/{store}/"
    sizes = (
        file.size_bytes
        for file in location.storage.listed(f"state/{operator.number}")
        if folder in file.name and not _DESCRIPTIONS.search(file.name)
    )
    return sum(sizes) or None


def _form(schema: StoredSchema) -> Form:
    return {"key": columns_of_struct(schema.key), "value": columns_of_struct(schema.value)}


def columns_of_struct(text: str) -> list[dict[str, Any]]:
    """Return the columns of a struct as Spark writes it, without their metadata."""
    fields: list[dict[str, Any]] = _without_metadata(json.loads(text))["fields"]
    return fields


def _without_metadata(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _without_metadata(item) for name, item in part.items() if name != "metadata"}
    return [_without_metadata(item) for item in part] if isinstance(part, list) else part


def _stored_sources(location: CheckpointLocation, plan: BatchPlan) -> Iterator[SourceContract]:
    names = plan.sources or tuple(map(str, range(len(plan.ends))))
    for name, end in zip(names, plan.ends, strict=True):
        kind, form = read_end(end)
        if kind == FILES:
            form = _read_folder(location, name)
        yield SourceContract(id=name, kind=kind, form=form)


def read_end(end: str) -> tuple[str, Form]:
    """Return the kind of a source by the end of its data, empty if it does not tell."""
    match None if end == NO_END else json.loads(end):
        case {"logOffset": int(), **others} if not others:
            return FILES, {}
        case {"reservoirId": str()}:
            return _DELTA, {}
        case int():
            return NUMBERS, {}
        case {**topics} if topics and all(isinstance(part, dict) for part in topics.values()):
            return KAFKA, {"topics": sorted(topics)}
    return "", {}


def _read_folder(location: CheckpointLocation, source: str) -> Form:
    """Return the name of the folder whose files a source has read; nothing if it read none."""
    for name in location.storage.list(f"sources/{source}"):
        if (lines := location.read_content(name).splitlines()[1:2]) and b'"path"' in lines[0]:
            return _folder_form(str(json.loads(lines[0])["path"]).rpartition("/")[0])
    return {}


def _folder_form(path: str) -> Form:
    parts = [part for part in path.split("/") if part and "=" not in part]
    is_name = bool(parts) and not set("*?[{") & set(parts[-1])
    return {"folder": parts[-1]} if is_name else {}


def _planned_sources(query: DataFrame) -> Iterator[SourceContract]:
    known: dict[str, SourceContract] = {}
    for name, relation in streaming_sources(query):
        kind, options = _read_relation(relation)
        form: Form = {}
        if kind == FILES and options.get("path"):
            form = _folder_form(options["path"])
        if kind == KAFKA and options.get("subscribe"):
            form = {"topics": sorted(topic.strip() for topic in options["subscribe"].split(","))}
        known[name] = SourceContract(id=name, kind=kind, form=form)
    yield from known.values()


def _read_relation(relation: Any) -> tuple[str, Mapping[str, str]]:
    """Return the kind of a source in a plan, empty if it is not known, and its options."""
    name = ""
    match relation.getClass().getSimpleName():
        case "StreamingRelation":
            name = str(relation.dataSource().className())
        case "StreamingRelationV2":
            name = str(relation.sourceName())
    options = {option.lower(): value for option, value in relation_options(relation).items()}
    return _KINDS.get(name.lower(), ""), options
