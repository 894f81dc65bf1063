"""Compare parallelisms before restoring: what each would read, move, take and cost.

The expected time is that of the slowest subtask (:mod:`statestore.restore.restart_time`). Costs
follow from a given price table.
:func:`choose_parallelism` has the rule that picks a parallelism. The rule is a heuristic, and its
reason is part of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from statestore.display import NotebookBar, bars, figure, size, table, text
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest
from statestore.keys.groups import Assignment, KeyGroupAssignment
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.placement import LOCALITY, place_operators
from statestore.restore.plan import OperatorPlan, RestorePlan
from statestore.restore.restart_time import RestoreSpeed
from statestore.restore.target import RestoreTarget, plan_target
from statestore.rows.dataframes import as_pandas, as_polars, table_of

if TYPE_CHECKING:
    import pyarrow as pa

SLOWER = 1.5
"""With prices, the cheapest option may take this many times the least expected seconds."""

ALIKE = 1.05
"""Values up to this many times the smallest value count as equal to it."""

NOISE_SECONDS = 0.1
NOISE_BYTES = 10**6
"""Values within these limits of the smallest one count as equal: a single request may vary more."""

_GB = 10**9
_MOST_CANDIDATES = 12
_HOUR = 3600


@dataclass(frozen=True)
class Prices:
    """The prices of a restore in ``currency``; a GB is 10^9 bytes. Prices default to 0.

    ``per_subtask_hour`` is paid for every subtask during the restore.
    """

    currency: str = ""
    per_1000_requests: float = 0.0
    per_gb_read: float = 0.0
    per_gb_moved: float = 0.0
    per_subtask_hour: float = 0.0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Prices:
        """Return the prices of a table; InvalidArgumentError for an invalid name or price."""
        known = {field.name for field in fields(cls)}
        for name, value in table.items():
            if name not in known:
                raise InvalidArgumentError(
                    f"unknown price {name!r}; known prices: {', '.join(sorted(known))}"
                )
            if name == "currency":
                if not isinstance(value, str):
                    raise InvalidArgumentError(f"currency must be text, not {value!r}")
            elif type(value) not in (int, float) or not 0 <= value < math.inf:
                raise InvalidArgumentError(f"{name} must be a number of at least 0, not {value!r}")
        return cls(**table)


@dataclass(frozen=True)
class Compared:
    """The expected figures of a restore at one parallelism, for all operators together.

    ``largest_bytes`` is the size of the largest subtask of any operator. ``seconds`` is None
    without a rate, and ``money`` is None without prices.
    """

    parallelism: int
    moved_bytes: int
    largest_bytes: int
    size_bytes: int
    files: int
    requests: int
    seconds: float | None = None
    money: float | None = None


_COLUMNS = {
    "parallelism": "int64",
    "moved_bytes": "int64",
    "largest_bytes": "int64",
    "size_bytes": "int64",
    "files": "int64",
    "requests": "int64",
    "seconds": "float64",
    "money": "float64",
}


@dataclass(frozen=True)
class Comparison:
    """A comparison of parallelisms in ascending order, the chosen one, and the reason.

    ``speed`` is what a subtask takes, None if unknown, and ``rate`` its bytes per second. With
    ``hosts``, moved bytes are the bytes without a copy on the subtask's host. Without ``hosts``,
    they are the bytes whose subtask changes.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("rate",)

    checkpoint_id: int
    old_parallelism: int
    options: tuple[Compared, ...]
    chosen: int
    why: str
    speed: RestoreSpeed | None
    prices: Prices | None
    hosts: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        """Bytes per second and subtask; None if unknown, or if only requests take time."""
        return None if self.speed is None else self.speed.rate

    def to_arrow(self) -> pa.Table:
        """Return one row per parallelism."""
        return table_of(_COLUMNS, map(astuple, self.options))

    to_pandas = as_pandas
    to_polars = as_polars

    def __repr__(self) -> str:
        return f"Comparison({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the largest subtask at each parallelism, and the choice."""
        drawn = [
            NotebookBar(
                f"parallelism {option.parallelism}",
                ((option.largest_bytes, "good" if option.parallelism == self.chosen else "plain"),),
                f"{size(option.largest_bytes)}, of which {size(option.moved_bytes)} move",
            )
            for option in self.options
        ]
        why = text(f"bytes of the largest subtask; recommended is {self.chosen}: {self.why}")
        return figure(
            self._summary(), why, bars(drawn), table([*_COLUMNS], map(astuple, self.options))
        )

    def _summary(self) -> str:
        others = ", ".join(str(option.parallelism) for option in self.options)
        return (
            f"checkpoint {self.checkpoint_id} from parallelism {self.old_parallelism} to "
            f"{others}: recommended is {self.chosen}"
        )


def compare_plans(
    manifest: Manifest,
    plans: Mapping[int, RestorePlan],
    *,
    hosts: Mapping[str, int] | None = None,
    strategy: str = LOCALITY,
    rate: float | RestoreSpeed | None = None,
    prices: Prices | None = None,
) -> Comparison:
    """Return a comparison of the plans of several parallelisms, at least one.

    ``hosts`` maps each host to its number of slots. Raises InvalidArgumentError if no plans are
    given, if the rate is not above 0, or if the hosts have fewer slots than a parallelism has
    subtasks.
    """
    if not plans:
        raise InvalidArgumentError("pass the parallelisms to compare_plans, for example 4,8,16")
    speed = None if rate is None else RestoreSpeed.of(rate)
    options = tuple(
        _compare_plan(manifest, parallelism, plans[parallelism], hosts, strategy, speed, prices)
        for parallelism in sorted(plans)
    )
    chosen, why = choose_parallelism(options)
    return Comparison(
        checkpoint_id=manifest.checkpoint_id,
        old_parallelism=manifest.parallelism,
        options=options,
        chosen=chosen,
        why=why,
        speed=speed,
        prices=prices,
        hosts=tuple(hosts or ()),
    )


def choose_parallelism(options: Sequence[Compared]) -> tuple[int, str]:
    """Return the chosen parallelism, and the rule that chose it.

    Without prices, choose the option with the least expected seconds; without a rate, the one with
    the smallest largest subtask, which gives the same order. With prices, choose the cheapest
    option that takes at most :data:`SLOWER` times as long as the fastest. Options within
    :data:`ALIKE` times the least count as equal, because sizes and rates are not exact. So do
    options within :data:`NOISE_SECONDS` or :data:`NOISE_BYTES` of it. Among equal options, choose
    the one that moves the fewest bytes (without hosts the current parallelism), then the smallest.
    """
    fastest = min(_slowness(option) for option in options)
    if any(option.money is None for option in options):
        reason = (
            "the smallest largest subtask"
            if options[0].seconds is None
            else "the least expected time"
        )
        return _best_option(options, _slowness, reason, _noise_limit(options[0]))
    most = max(SLOWER * fastest, fastest + _noise_limit(options[0]))
    near = [option for option in options if _slowness(option) <= most]
    measure = "bytes of the largest subtask" if options[0].seconds is None else "expected time"
    reason = f"the lowest cost among those within {SLOWER} times the least {measure}"
    return _best_option(near, lambda option: option.money or 0.0, reason)


def candidates(manifest: Manifest) -> list[int]:
    """Return some parallelisms around the parallelism of a checkpoint, ascending."""
    now, most = manifest.parallelism, highest_parallelism(manifest)
    near = range(max(1, now - 3), now + 4)
    far = (1, now // 2, now * 2, now * 3, now * 4)
    return sorted({one for one in (*near, *far) if 1 <= one <= most})[:_MOST_CANDIDATES]


def highest_parallelism(manifest: Manifest) -> int:
    """Return the highest possible parallelism of a restore."""
    return min((entry.state.max_parallelism for entry in manifest.keyed), default=32_768)


def moved_between_subtasks(manifest: Manifest, plan: OperatorPlan) -> int:
    """Return the bytes of keyed state in key groups that change their subtask.

    The previous owners are the ranges recorded in the checkpoint, or Flink's even ranges. Raises
    InvalidArgumentError if the plan has another max parallelism.
    """
    entries = [entry for entry in manifest.keyed if entry.state.uid == plan.stored_operator]
    if not entries or plan.assignment is None:
        return 0
    weights = weights_of(entries)
    if plan.max_parallelism != len(weights):
        raise InvalidArgumentError(
            f"operator {plan.operator!r} has {len(weights)} key groups, but max parallelism "
            f"{plan.max_parallelism} in the plan; compare_plans requires the stored max "
            "parallelism"
        )
    old: Assignment | None = manifest.ranges.get(plan.stored_operator)
    if old is None:
        old = KeyGroupAssignment(
            max_parallelism=len(weights),
            parallelism=manifest.operators.parallelism_of(plan.stored_operator),
        )
    pairs = zip(_owners(old), _owners(plan.assignment), weights, strict=True)
    return sum(weight for before, after, weight in pairs if before != after)


def moved_between_hosts(
    manifest: Manifest, plan: RestorePlan, hosts: Mapping[str, int], strategy: str = LOCALITY
) -> int:
    """Return the bytes of keyed state without a copy on the host where their subtask is placed.

    Raises InvalidArgumentError if the hosts have fewer slots than subtasks, or the strategy is
    unknown.
    """
    stored = {operator.stored_operator for operator in plan.operators}
    total = sum(entry.size_bytes for entry in manifest.keyed if entry.state.uid in stored)
    placed = place_operators(manifest, plan.operators, hosts, strategy)
    return max(total - sum(placement.local_bytes for placement in placed), 0)


def _compare_plan(
    manifest: Manifest,
    parallelism: int,
    plan: RestorePlan,
    hosts: Mapping[str, int] | None,
    strategy: str,
    speed: RestoreSpeed | None,
    prices: Prices | None,
) -> Compared:
    try:
        moved = (
            moved_between_hosts(manifest, plan, hosts, strategy)
            if hosts
            else sum(moved_between_subtasks(manifest, operator) for operator in plan.operators)
        )
    except InvalidArgumentError as error:
        error.add_note(f"while comparing parallelism {parallelism}")
        raise
    largest = max((operator.largest.size_bytes for operator in plan.operators), default=0)
    requests = sum(task.requests for task in plan.subtasks)
    seconds = None if speed is None else speed.seconds(plan.subtasks)
    money = None
    if prices is not None:
        money = (
            requests / 1000 * prices.per_1000_requests
            + plan.size_bytes / _GB * prices.per_gb_read
            + moved / _GB * prices.per_gb_moved
            + parallelism * (seconds or 0.0) / _HOUR * prices.per_subtask_hour
        )
    return Compared(
        parallelism=parallelism,
        moved_bytes=moved,
        largest_bytes=largest,
        size_bytes=plan.size_bytes,
        files=plan.files,
        requests=requests,
        seconds=seconds,
        money=money,
    )


def _owners(assignment: Assignment) -> list[int]:
    """Return the owning subtask of each key group, in order."""
    return [subtask for subtask, own in enumerate(assignment.ranges()) for _ in own]


def _slowness(option: Compared) -> float:
    return option.largest_bytes if option.seconds is None else option.seconds


def _noise_limit(option: Compared) -> float:
    return NOISE_BYTES if option.seconds is None else NOISE_SECONDS


def _best_option(
    options: Sequence[Compared],
    key: Callable[[Compared], float],
    reason: str,
    noise: float = 0.0,
) -> tuple[int, str]:
    """Return the best of the about equal options, and why it is the best."""
    least = min(map(key, options))
    alike = [option for option in options if key(option) <= max(ALIKE * least, least + noise)]
    best = min(alike, key=lambda option: (option.moved_bytes, option.parallelism))
    if len(alike) > 1:
        reason = f"{len(alike)} have about {reason}, and it moves the fewest bytes of them"
    return best.parallelism, reason


def compare(
    manifest: Manifest,
    parallelisms: Iterable[int],
    *,
    balance: Weight | str | None,
    hosts: Mapping[str, int] | None,
    strategy: str,
    rate: float | RestoreSpeed | None,
    prices: Prices | None,
    local: Collection[str] = frozenset(),
) -> Comparison:
    """Compare the reads, moved bytes, time and cost of a restore at several parallelisms.

    Raises ParallelismError, which names the operator, or InvalidArgumentError.
    """
    if hosts and balance is not None:
        raise InvalidArgumentError(
            "hosts are chosen for Flink's even ranges; pass either hosts or balance"
        )
    plans = {
        parallelism: plan_target(
            manifest, RestoreTarget(parallelism=parallelism, balance=balance), local
        )
        for parallelism in parallelisms
    }
    return compare_plans(manifest, plans, hosts=hosts, strategy=strategy, rate=rate, prices=prices)
