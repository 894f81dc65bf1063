"""Compare a checkpoint location of Structured Streaming with the plan of a new query.

Spark decides when the query starts, and compares:

- the stateful operators by their position in the plan
  (``IncrementalExecution.checkOperatorValidWithMetadata``);
- the columns of each store by position and type, without their names
  (``StateSchemaCompatibilityChecker``, ``DataType.equalsIgnoreNameAndCompatibleNullability``), or
  with Avro the values of a transformWithState by name (``SchemaValidatorBuilder.canReadStrategy``);
- the kind of each variable, and the modes of a transformWithState
  (``TransformWithStateOperatorProperties.validateOperatorProperties``);
- the number of sources, or their names (``OffsetSeq.toStreamProgress``).

The settings in the offset log win over the session's (``OffsetSeqMetadata.setSessionConf``). Spark
does not notice columns of equal types that changed places, and would misread the rows. Such columns
do not fit here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from statestore.contract.model import (
    Finding,
    JobContract,
    OperatorContract,
    SourceContract,
    StateContract,
    Verdict,
)
from statestore.format.schema import type_text

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
MODES = ("timeMode", "outputMode")
_AGGREGATIONS = "stateStoreSave", "sessionWindowStateStoreSaveExec", "StatefulStreamlineAggregate"
_BOOTSTRAP = "statestore spark bootstrap JOB NEW --from-table STATE=TABLE"
_REPARTITION = "statestore spark repartition LOCATION NEW --shuffle-partitions"

Columns = Sequence[Mapping[str, Any]]


def compare_spark(old: JobContract, new: JobContract) -> tuple[Finding, ...]:
    """Return the verdicts about the sources, settings and states of a query."""
    return (
        *_compare_settings(old, new),
        *_compare_sources(old, new),
        *_compare_operators(old, new),
    )


def _compare_settings(old: JobContract, new: JobContract) -> Iterator[Finding]:
    if None not in (old.partitions, new.partitions) and old.partitions != new.partitions:
        yield Finding(
            verdict=Verdict.SAME,
            reason=f"the location keeps its {old.partitions} shuffle partitions; the session's "
            f"{new.partitions} have no effect",
            remedy=f"{_REPARTITION} {new.partitions}",
        )
    for name, before in old.settings.items():
        now = new.settings.get(name, before)
        if now == before:
            continue
        verdict, remedy, change = Verdict.UNFIT, None, f"{name} was {before} and is {now}"
        if name.endswith(MODES):
            remedy = _BOOTSTRAP
            reason = f"{change}, which transformWithState does not allow after a restart"
        elif name == CHECKPOINT_FORMAT:
            reason = (
                f"{change} in the session, and Spark would not find the files of the state: set it "
                f"to {before}"
            )
        else:
            verdict = Verdict.SAME
            reason = (
                f"{name} stays {before}, as in the offset log; the session's {now} has no effect"
            )
        if name == PROVIDER:
            provider = "rocksdb" if "RocksDB" in now else "hdfs"
            remedy = f"{_REPARTITION} {old.partitions} --provider {provider}"
        yield Finding(verdict=verdict, reason=reason, remedy=remedy)


def _compare_sources(old: JobContract, new: JobContract) -> Iterator[Finding]:
    before = {source.id: source for source in old.sources}
    now = {source.id: source for source in new.sources}
    if old.settings.get(OFFSET_LOG, "1") == "1" and len(old.sources) != len(new.sources):
        yield Finding(
            verdict=Verdict.UNFIT,
            reason=f"there are {len(old.sources)} sources in the checkpoint offsets, and the query "
            f"has {len(new.sources)}",
            remedy=f"{_REPARTITION} {old.partitions} --rename-source OLD= (or =NEW)",
        )
        return
    for name, source in before.items():
        if name not in now:
            yield _source(
                name, Verdict.LOST, "the query does not read it, so its position is not used"
            )
        elif (other := _other_source(source, now[name])) is not None:
            yield _source(
                name,
                Verdict.UNFIT,
                other,
                f"{_REPARTITION} {old.partitions} --rename-source OLD=NEW",
            )
    for name in now:
        if name not in before:
            yield _source(name, Verdict.EMPTY, "it begins at its first position")


def _source(name: str, verdict: Verdict, reason: str, remedy: str | None = None) -> Finding:
    return Finding(operator=f"source {name}", verdict=verdict, reason=reason, remedy=remedy)


def _other_source(old: SourceContract, new: SourceContract) -> str | None:
    """Return why a source would read the position of another one; None if it reads its own.

    Spark reads the last files again when it starts (``FileStreamSource.getBatch``), and a topic
    that is gone is lost data (``KafkaOffsetReader``, ``failOnDataLoss``).
    """
    if old.kind and new.kind and old.kind != new.kind:
        return f"its position is one of {old.kind}, and the query reads {new.kind} there"
    folders = [source.form.get("folder") for source in (old, new)]
    if None not in folders and folders[0] != folders[1]:
        return f"it has read files of folder {folders[0]!r}, and the query reads {folders[1]!r}"
    gone = sorted({*old.form.get("topics", ())} - {*new.form.get("topics", ())})
    if gone and "topics" in new.form:
        return f"the query does not read topic {', '.join(gone)}, whose offsets it has"
    return None


def _compare_operators(old: JobContract, new: JobContract) -> Iterator[Finding]:
    before = {operator.id: operator for operator in old.operators}
    now = {operator.id: operator for operator in new.operators}
    for number in sorted({*before, *now}, key=int):
        was, planned = before.get(number), now.get(number)
        if was is not None and planned is not None and was.name == planned.name:
            yield from _compare_states(was, planned, avro=old.settings.get(ENCODING) == "avro")
        else:
            yield from _refuse_operator(number, was, planned)


def _refuse_operator(
    number: str, was: OperatorContract | None, planned: OperatorContract | None
) -> Iterator[Finding]:
    """Yield what Spark refuses as STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA."""
    names = ["not found" if operator is None else operator.name for operator in (was, planned)]
    reason = (
        f"stateful operator {number} is {names[0]} in the checkpoint and {names[1]} in the plan"
    )
    for operator in [each for each in (was, planned) if each is not None][:1]:
        for state in operator.states:
            yield _finding(operator, state, Verdict.UNFIT, reason)


def _finding(
    operator: OperatorContract, state: StateContract, verdict: Verdict, reason: str
) -> Finding:
    return Finding(
        operator=f"{operator.name}-{operator.id}",
        state=state.name,
        verdict=verdict,
        reason=reason,
        remedy=_BOOTSTRAP if verdict in (Verdict.LOST, Verdict.UNFIT) else None,
        rows=state.rows,
        bytes=state.bytes,
    )


def _compare_states(
    old: OperatorContract, new: OperatorContract, *, avro: bool
) -> Iterator[Finding]:
    before = {state.name: state for state in old.states}
    now = {state.name: state for state in new.states}
    for name, state in before.items():
        if name in now:
            yield _finding(old, state, *_judge(old.name, state, now[name], avro=avro))
        else:
            yield _finding(old, state, Verdict.LOST, "the processor does not declare it")
    for name, state in now.items():
        if name not in before:
            yield _finding(new, state, Verdict.EMPTY, "the checkpoint has no such state")


def _judge(
    operator: str, old: StateContract, new: StateContract, *, avro: bool
) -> tuple[Verdict, str]:
    if old.kind != new.kind:
        return Verdict.UNFIT, f"it was a {old.kind} and is a {new.kind}"
    if old.form.get("ttl", False) != new.form.get("ttl", old.form.get("ttl", False)):
        was, now = ("on" if state.form.get("ttl") else "off" for state in (old, new))
        return Verdict.UNFIT, f"the TTL was {was} and is {now}, which changes the stored value"
    findings: list[tuple[Verdict, str]] = []
    for role in ("key", "value"):
        if role not in new.form:
            continue
        was, now = old.form[role], new.form[role]
        if role == "value" and avro and old.kind.endswith("State"):
            findings += _evolution([*old.form.get("older", ()), was], now)
        else:
            findings += _difference(role, was, now, is_buffer=operator in _AGGREGATIONS)
    return _worst(findings)


def _worst(findings: Sequence[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """Return the most severe of several verdicts with all reasons for it."""
    severity = Verdict.UNFIT, Verdict.LOST, Verdict.UNKNOWN, Verdict.CONVERTS, Verdict.SAME
    worst = next((each for each in severity if each in dict(findings)), Verdict.SAME)
    return worst, "; ".join(reason for verdict, reason in findings if verdict is worst and reason)


def _difference(
    role: str, old: Columns, new: Columns, *, is_buffer: bool
) -> Iterator[tuple[Verdict, str]]:
    """Yield what differs in the columns of a key or a value, which Spark reads by position."""
    if len(old) != len(new):
        yield Verdict.UNFIT, f"the {role} was ({_text(old)}) and is ({_text(new)})"
        return
    for was, now in zip(old, new, strict=True):
        if not _is_compatible(now, was):
            yield (
                Verdict.UNFIT,
                f"column {now['name']!r} of the {role} was {_column(was)} and is {_column(now)}",
            )
    before, names = list(_names(old)), list(_names(new))
    if before == names:
        if old != new:
            yield Verdict.SAME, f"Spark accepts other nulls in the {role}"
        return
    pairs = [(was, now) for was, now in zip(before, names, strict=False) if was != now]
    moved = [was for was, _ in pairs]
    if {*moved} & {*names}:
        reason = f"{', '.join(moved)} of the {role} have other positions, by which Spark reads them"
        yield Verdict.UNFIT, f"the columns {reason}"
    elif is_buffer and role == "value":
        reason = f"the value had the buffers ({', '.join(before)}) and has ({', '.join(names)})"
        yield Verdict.UNFIT, f"{reason}, and Spark would read one function's buffer as another's"
    else:
        renamed = [f"{was}={now}" for was, now in pairs]
        reason = f"Spark compares no names, so the {role} fits only if {' and '.join(renamed)}"
        yield (
            Verdict.UNKNOWN,
            f"{reason} renames a column: then pass --renamed {' --renamed '.join(renamed)}",
        )


def _is_compatible(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether a field fits the stored one, without their names."""
    return (old["nullable"] or not new["nullable"]) and _fits(new["type"], old["type"])


def _fits(new: Any, old: Any) -> bool:
    if isinstance(new, str) or isinstance(old, str) or new["type"] != old["type"]:
        return bool(new == old)
    if new["type"] == "struct":
        fields = (new["fields"], old["fields"])
        return len(fields[0]) == len(fields[1]) and all(map(_is_compatible, *fields))
    if new["type"] == "array":
        is_nullable = old["containsNull"] or not new["containsNull"]
        return is_nullable and _fits(new["elementType"], old["elementType"])
    return (
        (old["valueContainsNull"] or not new["valueContainsNull"])
        and _fits(new["keyType"], old["keyType"])
        and _fits(new["valueType"], old["valueType"])
    )


def _names(columns: Columns) -> Iterator[str]:
    """Yield the names of columns and of the fields in them, with their paths."""
    for column in columns:
        yield column["name"]
        for inner in _structs(column["type"]):
            yield from (f"{column['name']}.{name}" for name in _names(inner))


def _structs(data_type: Any) -> Iterator[Columns]:
    if isinstance(data_type, str):
        return
    if data_type["type"] == "struct":
        yield data_type["fields"]
    for part in ("elementType", "keyType", "valueType"):
        yield from _structs(data_type.get(part, ""))


def _text(columns: Columns) -> str:
    return ", ".join(f"{column['name']} {_column(column)}" for column in columns)


def _column(column: Mapping[str, Any]) -> str:
    return f"{type_text(column['type'])}{'' if column['nullable'] else ' not null'}"


_AVRO = {
    **dict.fromkeys(("byte", "short", "integer", "date"), "int"),
    **dict.fromkeys(("long", "timestamp", "timestamp_ntz"), "long"),
}
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("binary",),
    "binary": ("string",),
}


def _evolution(stored: Sequence[Columns], new: Columns) -> Iterator[tuple[Verdict, str]]:
    """Yield what differs in the values of a variable, which Avro reads by name.

    All earlier columns must be readable, not only the newest.
    """
    for old in stored:
        before = {column["name"]: column["type"] for column in old}
        for column in new:
            name, data_type = column["name"], column["type"]
            if name in before and not _avro_reads(data_type, before[name]):
                reason = f"{name!r}, a {type_text(before[name])}, as {type_text(data_type)}"
                yield Verdict.UNFIT, f"Avro cannot read column {reason}"
    newest = {column["name"]: column["type"] for column in stored[-1]}
    now = {column["name"]: column["type"] for column in new}
    for name in newest:
        if name not in now:
            yield Verdict.LOST, f"column {name!r} is gone, and Avro skips its values"
        elif newest[name] != now[name]:
            was = type_text(newest[name])
            yield Verdict.CONVERTS, f"column {name!r} was {was} and is {type_text(now[name])}"
    for name in now:
        if name not in newest:
            yield Verdict.CONVERTS, f"column {name!r} is new, and null in stored rows"


def _avro_reads(new: Any, old: Any) -> bool:
    """Return whether Avro reads values of a stored type as a new type (``canRead``)."""
    if isinstance(new, str) and isinstance(old, str):
        wanted, written = _AVRO.get(new, new), _AVRO.get(old, old)
        return wanted == written or wanted in _PROMOTIONS.get(written, ())
    if isinstance(new, str) or isinstance(old, str) or new["type"] != old["type"]:
        return False
    if new["type"] == "struct":
        before = {field["name"]: field["type"] for field in old["fields"]}
        return all(
            _avro_reads(field["type"], before[field["name"]])
            for field in new["fields"]
            if field["name"] in before
        )
    inner = "elementType" if new["type"] == "array" else "valueType"
    return _avro_reads(new[inner], old[inner])


def with_renamed_columns(job: JobContract, renamed: Mapping[str, str]) -> JobContract:
    """Return a contract in which columns of the states have other names.

    Args:
        job: The contract of the state. One of another engine is not changed.
        renamed: The new name of each old column.
    """
    if job.engine != "spark":
        return job

    def columns(before: Columns) -> list[dict[str, Any]]:
        return [{**each, "name": renamed.get(each["name"], each["name"])} for each in before]

    def state(before: StateContract) -> StateContract:
        parts = {role: columns(before.form[role]) for role in ("key", "value")}
        return replace(before, form={**before.form, **parts})

    operators = tuple(
        replace(operator, states=tuple(map(state, operator.states))) for operator in job.operators
    )
    return replace(job, operators=operators)
