"""The settings of the jobs, as values that are checked without Spark.

``conf/*.toml`` documents each setting with its unit, default and reason. The dataclasses mirror the
tables of the file, down to :mod:`jobs.places`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jobs.places import (
    JobSettings,
    SinkSettings,
    SnapshotStoreSettings,
    SourceSettings,
    SparkSettings,
    StoreSettings,
    in_bucket,
)
from statestore.errors import InvalidArgumentError
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.restart import NoRestart
from statestore.restore.byte_sizes import AUTO, bytes_of
from statestore.restore.target import RestoreTarget
from statestore.settings import setting
from statestore.sources.discovery import Policies
from statestore.sources.kafka import DEFAULT_SECONDS
from statestore.sources.mirror_names import MirrorFlow
from statestore.sources.mirror_policies import TranslationPolicies

__all__ = [
    "KafkaSettings",
    "KeyedSettings",
    "MirrorSettings",
    "OffsetsSettings",
    "OperatorSettings",
    "RestoreSettings",
    "RestoredStateSettings",
    "SnapshotSettings",
    "StartFilesSettings",
    "StateName",
]

MOST_KEY_GROUPS: Final = 32_768

# For each kind: the setting that names its additional column, and the default column name.
_ENTRY: Final[dict[str, tuple[str, str | None]]] = {
    "list": ("position", "position"),
    "map": ("map_key", None),
    "timers": ("timestamp", "timestamp"),
}


@dataclass(frozen=True, kw_only=True)
class KeyedSettings:
    """One keyed state of a snapshot: its name, its columns with their roles, and its source."""

    operator: str
    state: str
    key: tuple[str, ...]
    source: SourceSettings
    kind: Literal["value", "list", "map", "reducing", "aggregating", "timers"] = "value"
    namespace: tuple[str, ...] = ()
    position: str | None = None
    map_key: tuple[str, ...] | None = None
    timestamp: str | None = None
    time_domain: Literal["event", "processing"] | None = None
    max_parallelism: int | None = setting(None, unit="key groups", low=1, high=MOST_KEY_GROUPS)
    hash_scheme: Literal["java", "flink-sql", "pyflink"] | None = None
    key_types: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    changes: Literal["off", "upserts", "against-latest"] = "off"

    def __post_init__(self) -> None:
        """Refuse columns that the kind does not have, and a kind that lacks a column it needs."""
        if not self.key:
            raise InvalidArgumentError("key has no columns; a keyed state needs at least one")
        wanted, default = _ENTRY.get(self.kind, (None, None))
        for name in ("position", "map_key", "timestamp"):
            if getattr(self, name) is not None and name != wanted:
                raise InvalidArgumentError(f"{name} cannot be set for {self.kind} state; remove it")
        if wanted is not None and default is None and not getattr(self, wanted):
            raise InvalidArgumentError(f"{wanted} is missing; {self.kind} state requires it")
        if (self.kind == "timers") is (self.time_domain is None):
            problem = (
                "is missing" if self.kind == "timers" else f"cannot be set for {self.kind} state"
            )
            raise InvalidArgumentError(
                f"time_domain {problem}; only timers have a time domain, either event or processing"
            )

    @property
    def entry(self) -> tuple[str, ...]:
        """The columns that distinguish the rows of one key, as the kind requires."""
        wanted, default = _ENTRY.get(self.kind, (None, None))
        named = getattr(self, wanted) if wanted else None
        columns = named or default or ()
        return (columns,) if isinstance(columns, str) else columns


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """One operator state of a snapshot: its mode, and the source of its elements."""

    operator: str
    state: str
    mode: Literal["split", "union", "broadcast"]
    source: SourceSettings


@dataclass(frozen=True, kw_only=True)
class StateName:
    """An operator, and the name of one of its states."""

    operator: str
    state: str


@dataclass(frozen=True, kw_only=True)
class SnapshotSettings(JobSettings):
    """The snapshot job: these states, in one checkpoint.

    ``graph`` is the file of a job graph, which has the parallelism of each operator. ``others`` is
    the policy for states of the newest checkpoint that are neither listed here nor in ``drop``.
    """

    parallelism: int | None = setting(None, unit="subtasks", low=1, high=MOST_KEY_GROUPS)
    graph: str | None = None
    checkpoint_id: int | None = setting(None, unit="checkpoint id", low=1, high=10**10 - 1)
    job: str | None = None
    batch: int | None = setting(None, unit="batch number", low=0, high=2**63 - 1)
    others: Literal["refuse", "carry"] = "refuse"
    drop: tuple[StateName, ...] = ()
    store: SnapshotStoreSettings
    spark: SparkSettings = field(default_factory=SparkSettings)
    keyed: tuple[KeyedSettings, ...] = ()
    operator_state: tuple[OperatorSettings, ...] = ()

    def __post_init__(self) -> None:
        """Refuse: no states, duplicate states, no parallelism, fewer key groups than subtasks."""
        _check_states(self.states)
        if (self.job is None) is not (self.batch is None):
            raise InvalidArgumentError("job and batch must be set together; set both or neither")
        written = {(state.operator, state.state) for state in self.states}
        for operator, name in written & self.dropped:
            raise InvalidArgumentError(
                f"state {name!r} of operator {operator!r} is written and also listed in drop; "
                "remove one of the two"
            )
        if self.graph is not None:
            return  # the graph has the parallelism and max parallelism of each operator
        if self.parallelism is None:
            raise InvalidArgumentError(
                "'parallelism' is missing; set it, or set graph to the job graph"
            )
        for state in self.keyed:
            if state.max_parallelism is not None and state.max_parallelism < self.parallelism:
                raise InvalidArgumentError(
                    f"state {state.state!r} of operator {state.operator!r} has max_parallelism "
                    f"{state.max_parallelism}, which is below the parallelism "
                    f"{self.parallelism}; lower the parallelism or raise max_parallelism"
                )

    @property
    def states(self) -> tuple[KeyedSettings | OperatorSettings, ...]:
        """All states, keyed first."""
        return (*self.keyed, *self.operator_state)

    @property
    def dropped(self) -> set[tuple[str, str]]:
        """Operator and name of each dropped state."""
        return {(state.operator, state.state) for state in self.drop}

    @property
    def needs_delta(self) -> bool:
        """Whether Spark needs Delta to read a source. Writing a store never needs it."""
        return any(state.source.format == "delta" for state in self.states)

    @property
    def needs_s3(self) -> bool:
        """Whether Spark itself must access S3 to read a source."""
        return any(in_bucket(state.source.path) for state in self.states)


@dataclass(frozen=True, kw_only=True)
class RestoredStateSettings:
    """One state of a restore, and its sink."""

    operator: str
    state: str
    sink: SinkSettings


@dataclass(frozen=True, kw_only=True)
class RestoreSettings(JobSettings):
    """The restore job: these states of a checkpoint, at a parallelism (None: the stored one).

    ``parallelism`` may be ``"auto"``: each subtask then gets about ``bytes_per_task``, a number or
    a text such as 256MiB. ``graph`` is the file of a job graph, whose operators are matched with
    their state.
    """

    store: StoreSettings
    checkpoint: Any = "latest"
    parallelism: Any = None
    bytes_per_task: Any = None
    graph: str | None = None
    allow_non_restored_state: bool = False
    max_parallelism: int | None = setting(None, unit="key groups", low=1, high=MOST_KEY_GROUPS)
    spark: SparkSettings = field(default_factory=SparkSettings)
    keyed: tuple[RestoredStateSettings, ...] = ()
    operator_state: tuple[RestoredStateSettings, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, and sinks that cannot be written again.

        Also refuse: no states, duplicate states, two states with the same target, and an invalid
        checkpoint.
        """
        _check_checkpoint(self.checkpoint)
        _check_parallelism(self.parallelism)
        self.target(JobGraph(()) if self.graph is not None else None)
        _check_states(self.states)
        if not isinstance(self.restart_strategy, NoRestart):
            for state in self.states:
                _check_repeatable(state)
        places = [state.sink.path or state.sink.table for state in self.states]
        for place in places:
            if place is not None and places.count(place) > 1:
                raise InvalidArgumentError(
                    f"two states have the same target {place!r}; give each state its own target"
                )

    def target(self, graph: JobGraph | None) -> RestoreTarget:
        """Return the target of the restore, with the parsed job graph of ``graph``."""
        size = self.bytes_per_task
        return RestoreTarget(
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            bytes_per_task=None if size is None else bytes_of(size),
            graph=graph,
            allow_non_restored_state=self.allow_non_restored_state,
        )

    @property
    def states(self) -> tuple[RestoredStateSettings, ...]:
        """All states, keyed first."""
        return (*self.keyed, *self.operator_state)

    @property
    def needs_delta(self) -> bool:
        """Whether Spark needs Delta to write a sink. Reading a store never needs it."""
        return any(state.sink.format == "delta" for state in self.states)

    @property
    def needs_s3(self) -> bool:
        """Whether Spark itself must access S3 to write a sink. Reading a store never needs it."""
        return any(in_bucket(state.sink.path) for state in self.states)


@dataclass(frozen=True, kw_only=True)
class StartFilesSettings:
    """The local files to write; a file whose name is None is not written."""

    per_subtask: str | None = None
    starting_offsets: str | None = None


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Policies):
    """The Kafka cluster that the offsets are checked against; without ``bootstrap``, no check.

    The policies are inherited from :class:`~statestore.sources.discovery.Policies`. With
    the ``cluster`` ``new``, the offsets were stored for another cluster.
    """

    bootstrap: str | None = None
    cluster: Literal["same", "new"] = "same"
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    seconds: float = setting(DEFAULT_SECONDS, unit="seconds", low=0.1, high=3600)
    topics: tuple[str, ...] = ()
    group: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that have no effect without a broker, and unknown policies."""
        super().__post_init__()
        if self.bootstrap is not None:
            return
        for name in ("options", "topics", "group"):
            if getattr(self, name):
                raise InvalidArgumentError(
                    f"{name} is set but bootstrap is not, so Kafka would not be used; set "
                    f"bootstrap or remove {name}"
                )


@dataclass(frozen=True, kw_only=True)
class MirrorSettings(TranslationPolicies):
    """How MirrorMaker 2 replicates the stored topics to the cluster of ``[kafka]``.

    The policies are inherited from
    :class:`~statestore.sources.mirror_policies.TranslationPolicies`.
    """

    source: str | None = None
    target: str | None = None
    bootstrap: str | None = None
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    policy: Literal["default", "identity"] = "default"
    separator: str = "."
    internal_separator: bool = True
    syncs_on: Literal["source", "target"] = "source"

    @property
    def flow(self) -> MirrorFlow:
        """The replication flow. Raises InvalidArgumentError if an alias is missing or invalid."""
        return MirrorFlow(
            source=self.source or "",
            target=self.target or "",
            policy=self.policy,
            separator=self.separator,
            internal_separator=self.internal_separator,
            syncs_on=self.syncs_on,
        )


@dataclass(frozen=True, kw_only=True)
class OffsetsSettings(JobSettings):
    """The redistribute_offsets job: one operator state, for a new number of subtasks."""

    store: StoreSettings
    offsets: StateName
    parallelism: int = setting(unit="subtasks", low=1, high=MOST_KEY_GROUPS)
    checkpoint: Any = "latest"
    check_only: bool = False
    files: StartFilesSettings = field(default_factory=StartFilesSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    mirror: MirrorSettings = field(default_factory=MirrorSettings)

    def __post_init__(self) -> None:
        """Refuse an invalid checkpoint, an incomplete replication flow, and an unused one."""
        _check_checkpoint(self.checkpoint)
        if self.kafka.cluster == "same":
            if self.mirror != MirrorSettings():
                raise InvalidArgumentError(
                    "the table mirror has settings, but kafka.cluster is 'same', so they would not "
                    "be used; set kafka.cluster to 'new', or remove the table"
                )
            return
        if self.kafka.bootstrap is None:
            raise InvalidArgumentError(
                "kafka.cluster is 'new' but kafka.bootstrap is not set; set it to a broker of the "
                "new cluster"
            )
        _ = self.mirror.flow
        if self.mirror.options and self.mirror.bootstrap is None:
            raise InvalidArgumentError(
                "mirror.options is set but mirror.bootstrap is not, so the old cluster would not "
                "be used; set mirror.bootstrap or remove mirror.options"
            )


def _check_states(
    states: Sequence[KeyedSettings | OperatorSettings | RestoredStateSettings],
) -> None:
    if not states:
        raise InvalidArgumentError(
            "the settings name no state; add a [[keyed]] or [[operator_state]] table"
        )
    names = [(state.operator, state.state) for state in states]
    for uid, name in names:
        if names.count((uid, name)) > 1:
            raise InvalidArgumentError(
                f"state {name!r} of operator {uid!r} is listed twice; remove one of the two"
            )


def _check_checkpoint(checkpoint: Any) -> None:
    if type(checkpoint) is not int and not isinstance(checkpoint, str):
        raise InvalidArgumentError(f"checkpoint must be a number or 'latest', not {checkpoint!r}")


def _check_parallelism(parallelism: Any) -> None:
    if parallelism is None or parallelism == AUTO:
        return
    if type(parallelism) is not int:
        raise InvalidArgumentError(
            f"parallelism must be an integer or {AUTO!r}, not {parallelism!r}"
        )
    if not 1 <= parallelism <= MOST_KEY_GROUPS:
        raise InvalidArgumentError(
            f"parallelism must be in 1..{MOST_KEY_GROUPS} or {AUTO!r}, not {parallelism}"
        )


def _check_repeatable(state: RestoredStateSettings) -> None:
    """Refuse a sink that a restarted attempt would write a second time, on top of its own rows."""
    if state.sink.mode not in ("error", "overwrite"):
        raise InvalidArgumentError(
            f"state {state.state!r} of operator {state.operator!r} has a sink with mode "
            f"{state.sink.mode!r}, and the job has a restart strategy: a restarted attempt "
            "cannot distinguish the failed attempt's rows from older rows; set mode to error "
            "or overwrite, or remove the restart strategy"
        )
