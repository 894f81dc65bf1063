"""``statestore kafka translate``: move the offsets of a source to another Kafka cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from statestore.cli.arguments import distinct, named_values
from statestore.cli.checkpoints import write_derived
from statestore.cli.command import Invocation, Root, Verb, pass_invocation
from statestore.cli.options import (
    checkpoint_argument,
    dry_run_option,
    from_older_option,
    one_state_option,
)
from statestore.cli.output import Output, Page, table_of
from statestore.errors import IncompatibleStateError
from statestore.maintenance.translate_offsets import (
    TranslatedOffsets,
    TranslatedPartition,
    TranslationPlan,
)
from statestore.parsing import parse_integer
from statestore.sources.discovery import Policies
from statestore.sources.kafka import KafkaCluster
from statestore.sources.mirror import Mirror
from statestore.sources.mirror_policies import MirrorFlow, TranslationPolicies

__all__ = ["kafka", "translate_offsets"]


@click.group(
    "kafka",
    cls=Root,
    section="Move",
    examples=(
        (
            "statestore kafka translate --state orders-source/offsets --from-cluster "
            "old=old:9092 --to-cluster new=new:9092 --dry-run --store ./fraud"
        ),
    ),
    sections=("Kafka sources",),
)
def kafka() -> None:
    """Move the offsets of Kafka sources to another cluster."""


_INTERNAL = "replication.policy.internal.topic.separator.enabled"
_MIRROR = {
    "replication.policy.class": "DefaultReplicationPolicy",
    "replication.policy.separator": ".",
    _INTERNAL: "true",
    "offset-syncs.topic.location": "source",
}
"""The settings of MirrorMaker that name its topics, with its defaults."""
_RULES = ("untranslated", "read_again")
_CASES = (*_RULES, "new_partitions", "removed_partitions", "gap", "rewind")


@click.command(
    "translate",
    cls=Verb,
    section="Kafka sources",
    prints=(
        "A line for each partition: its offset at the source, how exactly it was translated, "
        "the live offsets at the target, and the decision; then the new checkpoint. If a policy "
        "refuses a partition, nothing is written, and the exit status is 12. A running job can "
        "no longer commit. Each answer of Kafka takes at most the setting kafka_seconds."
    ),
    examples=(
        (
            "statestore kafka translate --state orders-source/offsets --from-cluster "
            "old=old:9092 --to-cluster new=new:9092 --dry-run --store ./fraud"
        ),
        (
            "statestore kafka translate --state orders-source/offsets --from-cluster "
            "old --to-cluster new=new:9092 --mirror offset-syncs.topic.location=target "
            "--on read_again=100 --group orders-reader --store ./fraud"
        ),
    ),
)
@checkpoint_argument
@one_state_option
@click.option(
    "--from-cluster",
    "source",
    required=True,
    metavar="ALIAS[=HOST:PORT|@FILE]",
    help="The old cluster: MirrorMaker's alias, and brokers, unless the syncs are on the target. "
    "FILE has librdkafka's options, one name=value on each line, with bootstrap.servers.",
)
@click.option(
    "--to-cluster",
    "target",
    required=True,
    metavar="ALIAS=HOST:PORT|@FILE",
    help="The same for the new cluster.",
)
@click.option(
    "--mirror",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "A setting of MirrorMaker that is not its default: replication.policy.class, "
        "replication.policy.separator, replication.policy.internal.topic.separator.enabled or "
        "offset-syncs.topic.location."
    ),
)
@click.option(
    "--on",
    "decisions",
    multiple=True,
    metavar="CASE=DECISION",
    help=(
        "Decide a case by another policy than fail. untranslated=timestamp|earliest: an offset "
        "without a translation. new_partitions=earliest|latest: a partition without a stored "
        "offset. [earliest] removed_partitions=retire: a partition that the target lacks. "
        "gap=earliest: an offset before the target's first record. rewind=latest|earliest: one "
        "after its end. read_again=N: N records of a partition may be read a second time. [0]"
    ),
)
@click.option("--topic", "topics", multiple=True, help="One more topic of the target.")
@click.option("--group", metavar="ID", help="Commit the offsets for this consumer group, too.")
@from_older_option
@dry_run_option
@pass_invocation
def translate_offsets(
    invocation: Invocation,
    operator: str,
    state: str,
    source: str,
    target: str,
    settings: tuple[str, ...],
    decisions: tuple[str, ...],
    topics: tuple[str, ...],
    group: str | None,
    checkpoint: str,
    from_older: bool,
    dry_run: bool,
) -> Output[TranslatedOffsets]:
    """Translate offsets to the cluster that MirrorMaker 2 writes to."""
    seconds = invocation.settings.kafka_seconds
    decided = _decisions(decisions)
    rules = {name: decided.pop(name) for name in _RULES if name in decided}
    source_alias, source_cluster = _cluster(source, seconds)
    target_alias, target_cluster = _cluster(target, seconds)
    if target_cluster is None:
        raise click.UsageError(f"--to-cluster {target!r} must have the form ALIAS=HOST:PORT")
    mirror = Mirror(
        flow=_flow(source_alias, target_alias, settings),
        source=source_cluster,
        target=target_cluster,
        policies=Policies(**decided),
        rules=TranslationPolicies(**rules),
        topics=topics,
    )
    store = invocation.store()
    plan = store.maintenance.plan_translation(
        operator,
        state,
        mirror,
        checkpoint=checkpoint,
        from_older=from_older or dry_run,
        group=group,
    )
    if dry_run or plan.found.refused:
        return Output(plan.report, write_translated, _refusal(plan))
    return Output(plan.write(), write_translated)


def _flow(source: str, target: str, texts: Sequence[str]) -> MirrorFlow:
    """Return the flow between two clusters, from MirrorMaker's own settings."""
    settings = _MIRROR | _known_values("--mirror", "NAME=VALUE", texts, _MIRROR)
    policy, separator, is_used_internally, place = settings.values()
    if is_used_internally not in ("true", "false"):
        raise click.UsageError(f"--mirror {_INTERNAL} is true or false, not {is_used_internally!r}")
    return MirrorFlow(
        source=source,
        target=target,
        policy=policy.rpartition(".")[2].removesuffix("ReplicationPolicy").lower(),
        separator=separator,
        internal_separator=is_used_internally == "true",
        syncs_on=place,
    )


def _decisions(texts: Sequence[str]) -> dict[str, Any]:
    """Return the policies by the names that they have in Python and in settings files."""
    decided: dict[str, Any] = _known_values("--on", "CASE=DECISION", texts, _CASES)
    if "read_again" in decided:
        try:
            decided["read_again"] = parse_integer(decided["read_again"])
        except ValueError as error:
            raise click.UsageError(f"--on read_again: {error}") from error
    return decided


def _known_values(
    option: str, form: str, texts: Sequence[str], known: Iterable[str]
) -> dict[str, Any]:
    """Return the values of an option by name; a usage error for an unknown name."""
    values = named_values(option, form, texts)
    for name in values:
        if name not in known:
            raise click.UsageError(f"{option} has no {name!r}; it has {', '.join(known)}")
    return values


def _cluster(text: str, seconds: float) -> tuple[str, KafkaCluster | None]:
    """Return the alias and the cluster of ``ALIAS``, ``ALIAS=HOST:PORT`` or ``ALIAS=@FILE``."""
    alias, _, place = text.partition("=")
    if not place.startswith("@"):
        return alias, KafkaCluster(place, seconds=seconds) if place else None
    file = Path(place.removeprefix("@"))
    if not file.is_file():
        raise click.UsageError(f"{alias}={place}: there is no file {file}")
    options = _options(file)
    brokers = options.pop("bootstrap.servers", None)
    if brokers is None:
        raise click.UsageError(f"{file} lacks bootstrap.servers=HOST:PORT")
    return alias, KafkaCluster(brokers, options, seconds=seconds)


def _options(file: Path) -> dict[str, str]:
    options = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:  # without the line itself, which may have a password
            raise click.UsageError(f"line {number} of {file} must have the form name=value")
        options.append((name.strip(), value.strip()))
    return distinct(f"an option of {file}", options)


def _refusal(plan: TranslationPlan) -> IncompatibleStateError | None:
    """Return the error that names all refused partitions, or None."""
    try:
        _ = plan.found.offsets
    except IncompatibleStateError as error:
        return error
    return None


def write_translated(page: Page, translated: TranslatedOffsets) -> None:
    """Write the translated offsets as text."""
    decisions = Counter(each.decision for each in translated.partitions)
    counts = ", ".join(f"{number} {decision}" for decision, number in decisions.items())
    flow = f"{translated.source} -> {translated.target}"
    page.line(f"{flow}: {counts or 'no partitions'}", "bold")
    table = table_of(
        *("topic", "partition", "source", "translated", "live"), *("decision", "offset", "reason")
    )
    for each in translated.partitions:
        table.add_row(*_row(each))
    page.table(table)
    state = f"state {translated.state} of operator {translated.operator}"
    if translated.new_checkpoint_id is None:
        page.line(f"nothing was written of {state}, checkpoint {translated.checkpoint_id}")
    else:
        page.line(
            f"wrote {state} in {translated.store}: checkpoint {translated.new_checkpoint_id}, "
            f"from checkpoint {translated.checkpoint_id}",
            "bold",
        )
        if translated.group is not None:
            page.line(f"  committed for group {translated.group}")
    write_derived(page, translated)


def _row(partition: TranslatedPartition) -> tuple[str, ...]:
    return (
        partition.topic,
        str(partition.partition),
        "-" if partition.source_offset is None else str(partition.source_offset),
        partition.precision or "-",
        "-" if partition.low is None else f"{partition.low}..{partition.high}",
        partition.decision,
        "-" if partition.offset is None else str(partition.offset),
        partition.reason,
    )
