"""The JSON documents of ``statestore plan``."""

from __future__ import annotations

from msgspec import field

from statestore.cli.checkpoints import ChoiceDocument, RangeSkewDocument
from statestore.cli.documents import Document, KeyGroupsDocument, LeftOutDocument
from statestore.cli.graphs import MatchingDocument

__all__ = [
    "ComparisonDocument",
    "OperatorPlanDocument",
    "PlacedSubtaskDocument",
    "PlacementDocument",
    "PlanDocument",
    "PlanOptionDocument",
    "PricesDocument",
    "SubtaskPlanDocument",
]


class SubtaskPlanDocument(Document):
    """What a subtask reads. ``changed_rows`` of its rows are changes, if any."""

    subtask: int
    key_groups: KeyGroupsDocument | None
    rows: int
    size_bytes: int
    local_bytes: int
    files: int
    requests: int
    elements: int
    changed_rows: int = 0


class OperatorPlanDocument(Document):
    """The subtasks of an operator.

    ``read_amplification`` is the number of rows read for each row of the bases. It is absent if
    there are no changes to read and the max parallelism is the same.
    """

    uid: str
    max_parallelism: int | None
    states: list[str]
    largest_subtask: int
    subtasks: list[SubtaskPlanDocument]
    read_amplification: float | None = None


class PlacedSubtaskDocument(Document):
    """A subtask, its host, and the bytes that are already there."""

    subtask: int
    host: str
    local_bytes: int


class PlacementDocument(Document):
    """With ``--hosts``: the hosts of an operator's subtasks.

    Operators of one ``slot_group`` share a slot for each subtask.
    """

    uid: str = field(name="operator")
    strategy: str
    subtasks: list[PlacedSubtaskDocument]
    slot_group: str


class PlanDocument(Document):
    """What each subtask of a restore reads. ``matching`` is null without a graph.

    ``choices`` is empty if the parallelism was given. ``read_amplification`` is as for an operator.
    """

    store: str
    id: int
    old_parallelism: int
    parallelism: int
    size_bytes: int
    local_bytes: int
    files: int
    operators: list[OperatorPlanDocument]
    choices: list[ChoiceDocument]
    matching: MatchingDocument | None
    placements: list[PlacementDocument]
    skew: list[RangeSkewDocument]
    left_out: list[LeftOutDocument]
    read_amplification: float | None = None


class PricesDocument(Document):
    """The prices of the settings file."""

    currency: str
    per_1000_requests: float
    per_gb_read: float
    per_gb_moved: float
    per_subtask_hour: float


class PlanOptionDocument(Document):
    """A parallelism. ``seconds`` and ``money`` are null if they are unknown."""

    parallelism: int
    moved_bytes: int
    largest_bytes: int
    size_bytes: int
    files: int
    requests: int
    seconds: float | None
    money: float | None


class ComparisonDocument(Document):
    """With ``--compare``: several parallelisms. Unknown values are null."""

    store: str
    id: int
    old_parallelism: int
    hosts: list[str]
    bytes_per_second: float | None
    measured_at_ms: int | None
    prices: PricesDocument | None
    options: list[PlanOptionDocument]
    chosen: int
    why: str
