"""Parallelisms compared before any of them is restored at: what each would read, move, take, cost.

Expected seconds are the bytes of the largest subtask by a rate: subtasks restore side by side, and
the slowest one is waited for. Money is by a price table that is given. Which one would be taken
follows a rule of two lines, :func:`chosen_of`; nothing here is a law, and all of it is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

from statestore.display import Bar, bars, figure, size, table, text
from statestore.errors import InvalidArgumentError
from statestore.files.frames import as_pandas, as_polars, table_of
from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment
from statestore.restore.placement import LOCALITY, place_operators
from statestore.restore.plan import OperatorPlan, RestorePlan, Weight, weights_of
from statestore.restore.target import RestoreTarget, plan_target

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ALIKE",
    "NOISE_BYTES",
    "NOISE_SECONDS",
    "SLOWER",
    "Compared",
    "Comparison",
    "Prices",
    "chosen_of",
    "compare",
    "compare_plans",
    "moved_between_hosts",
    "moved_between_subtasks",
]

SLOWER = 1.5
"""With prices: how many times the least expected seconds the cheapest may take."""

ALIKE = 1.05
"""How many times the least counts as no more than it."""

NOISE_SECONDS = 0.1
NOISE_BYTES = 10**6
"""What is less than this above the least counts as no more than it: one request may take longer."""

_GB = 10**9
_HOUR = 3600


@dataclass(frozen=True)
class Prices:
    """What a restore costs, in ``currency``: a GB is 10^9 bytes. What is not given costs nothing.

    ``per_subtask_hour`` is paid for every subtask while the restore takes place.
    """

    currency: str = ""
    per_1000_requests: float = 0.0
    per_gb_read: float = 0.0
    per_gb_moved: float = 0.0
    per_subtask_hour: float = 0.0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Prices:
        """Return the prices of a table; InvalidArgumentError names what is unknown or no price."""
        known = {field.name for field in fields(cls)}
        for name, value in table.items():
            if name not in known:
                raise InvalidArgumentError(
                    f"no price {name!r}; there is {', '.join(sorted(known))}"
                )
            if name == "currency":
                if not isinstance(value, str):
                    raise InvalidArgumentError(f"currency is a text, not {value!r}")
            elif type(value) not in (int, float) or not 0 <= value < math.inf:
                raise InvalidArgumentError(f"{name} is a number, 0 or more, not {value!r}")
        return cls(**table)


@dataclass(frozen=True)
class Compared:
    """What a restore at a parallelism would do, all operators together.

    ``largest_bytes`` are those of the largest subtask of any operator. ``seconds`` is None without
    a rate, ``money`` without prices.
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
    """Parallelisms side by side, ascending, which one would be taken, and why.

    ``rate`` is in bytes per second and subtask, None when it is not known. With ``hosts`` the moved
    bytes are those that no copy on the subtask's host has; else those whose subtask is another one
    than it was.
    """

    checkpoint_id: int
    old_parallelism: int
    options: tuple[Compared, ...]
    chosen: int
    why: str
    rate: float | None
    prices: Prices | None
    hosts: tuple[str, ...]

    def to_arrow(self) -> pa.Table:
        """Return a row for each parallelism."""
        return table_of(_COLUMNS, map(astuple, self.options))

    to_pandas, to_polars = as_pandas, as_polars

    def __repr__(self) -> str:
        return f"Comparison({self._summary()})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the largest subtask at each parallelism, and the choice."""
        drawn = [
            Bar(
                f"parallelism {one.parallelism}",
                ((one.largest_bytes, "good" if one.parallelism == self.chosen else "plain"),),
                f"{size(one.largest_bytes)}, {size(one.moved_bytes)} move",
            )
            for one in self.options
        ]
        why = text(f"bytes of the largest subtask; {self.chosen} has {self.why}")
        return figure(
            self._summary(), why, bars(drawn), table([*_COLUMNS], map(astuple, self.options))
        )

    def _summary(self) -> str:
        others = ", ".join(str(one.parallelism) for one in self.options)
        return (
            f"checkpoint {self.checkpoint_id} from parallelism {self.old_parallelism} to {others}: "
            f"{self.chosen} would be taken"
        )


def compare_plans(
    manifest: Manifest,
    plans: Mapping[int, RestorePlan],
    *,
    hosts: Mapping[str, int] | None = None,
    strategy: str = LOCALITY,
    rate: float | None = None,
    prices: Prices | None = None,
) -> Comparison:
    """Return the plans of several parallelisms, one at least, compared.

    ``hosts`` says the slots of each. Raises InvalidArgumentError for no plan, a rate that is not
    above 0, or hosts with fewer slots than subtasks, naming the parallelism.
    """
    if not plans:
        raise InvalidArgumentError("name the parallelisms to compare_plans, such as 4,8,16")
    if rate is not None and not 0 < rate < math.inf:
        raise InvalidArgumentError(f"a rate is bytes per second, above 0, not {rate}")
    options = tuple(
        _compared(manifest, parallelism, plans[parallelism], hosts, strategy, rate, prices)
        for parallelism in sorted(plans)
    )
    chosen, why = chosen_of(options)
    return Comparison(
        checkpoint_id=manifest.checkpoint_id,
        old_parallelism=manifest.parallelism,
        options=options,
        chosen=chosen,
        why=why,
        rate=rate,
        prices=prices,
        hosts=tuple(hosts or ()),
    )


def chosen_of(options: Sequence[Compared]) -> tuple[int, str]:
    """Return the parallelism that would be taken, and the rule that says so.

    Without prices the one with the least expected seconds, or where no rate is known the smallest
    largest subtask, which is the same order. With prices the cheapest of those that take at most
    1.5 times as long as the fastest. What is within :data:`ALIKE` times the least counts as equal,
    as sizes of files and rates are not exact, and so do seconds and bytes that are less than
    :data:`NOISE_SECONDS` and :data:`NOISE_BYTES` apart; of equals the one that moves fewest
    bytes, which without hosts is the present parallelism, then the smallest.
    """
    fastest = min(_slowness(one) for one in options)
    if any(one.money is None for one in options):
        what = (
            "the smallest largest subtask"
            if options[0].seconds is None
            else "the least expected seconds"
        )
        best, alike = _first(options, _slowness, _noise(options[0]))
        return best.parallelism, what + alike
    most = max(SLOWER * fastest, fastest + _noise(options[0]))
    near = [one for one in options if _slowness(one) <= most]
    best, alike = _first(near, lambda one: one.money or 0.0)
    measure = "bytes of the largest subtask" if options[0].seconds is None else "expected seconds"
    return (
        best.parallelism,
        f"the least money among those within {SLOWER} times the least {measure}{alike}",
    )


def moved_between_subtasks(manifest: Manifest, plan: OperatorPlan) -> int:
    """Return the bytes of keyed state whose key group another subtask owns than in the checkpoint:
    by the ranges that it recorded, or else Flink's even ones.

    InvalidArgumentError when the plan is of another max parallelism.
    """
    entries = [one for one in manifest.keyed if one.state.uid == plan.stored_uid]
    if not entries or plan.assignment is None:
        return 0
    weights = weights_of(entries)
    if plan.max_parallelism != len(weights):
        raise InvalidArgumentError(
            f"operator {plan.uid!r} has {len(weights)} key groups, and the plan "
            f"{plan.max_parallelism}; compare_plans parallelisms at the stored max parallelism"
        )
    old: Assignment | None = manifest.ranges.get(plan.stored_uid)
    if old is None:
        old = KeyGroupAssignment(
            max_parallelism=len(weights),
            parallelism=manifest.operators.parallelism_of(plan.stored_uid),
        )
    pairs = zip(_owners(old), _owners(plan.assignment), weights, strict=True)
    return sum(weight for before, after, weight in pairs if before != after)


def moved_between_hosts(
    manifest: Manifest, plan: RestorePlan, hosts: Mapping[str, int], strategy: str = LOCALITY
) -> int:
    """Return the bytes of keyed state that have no copy on the host where their subtask is placed.

    InvalidArgumentError for hosts with fewer slots than subtasks or an unknown strategy.
    """
    stored = {one.stored_uid for one in plan.operators}
    total = sum(one.size_bytes for one in manifest.keyed if one.state.uid in stored)
    placed = place_operators(manifest, plan.operators, hosts, strategy)
    return max(total - sum(one.local_bytes for one in placed), 0)


def _compared(
    manifest: Manifest,
    parallelism: int,
    plan: RestorePlan,
    hosts: Mapping[str, int] | None,
    strategy: str,
    rate: float | None,
    prices: Prices | None,
) -> Compared:
    try:
        moved = (
            moved_between_hosts(manifest, plan, hosts, strategy)
            if hosts
            else sum(moved_between_subtasks(manifest, one) for one in plan.operators)
        )
    except InvalidArgumentError as error:
        error.add_note(f"while comparing parallelism {parallelism}")
        raise
    largest = max((one.largest.size_bytes for one in plan.operators), default=0)
    requests = sum(task.requests for one in plan.operators for task in one.subtasks)
    seconds = None if rate is None else largest / rate
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
    """Return the subtask of each key group, in order."""
    return [subtask for subtask, own in enumerate(assignment.ranges()) for _ in own]


def _slowness(one: Compared) -> float:
    return one.largest_bytes if one.seconds is None else one.seconds


def _noise(one: Compared) -> float:
    return NOISE_BYTES if one.seconds is None else NOISE_SECONDS


def _first(
    options: Sequence[Compared], key: Callable[[Compared], float], noise: float = 0.0
) -> tuple[Compared, str]:
    """Return the best of those that are alike, and what to say of it when there are several."""
    least = min(map(key, options))
    alike = [one for one in options if key(one) <= max(ALIKE * least, least + noise)]
    best = min(alike, key=lambda one: (one.moved_bytes, one.parallelism))
    more = f"; of {len(alike)} that are about equal the one that moves fewest bytes"
    return best, more if len(alike) > 1 else ""


# Compare: several parallelisms side by side, before a checkpoint is restored at one of them.


def compare(
    manifest: Manifest,
    parallelisms: Iterable[int],
    *,
    balance: Weight | str | None,
    hosts: Mapping[str, int] | None,
    strategy: str,
    rate: float | None,
    prices: Prices | None,
    local: Collection[str] = frozenset(),
) -> Comparison:
    """Return what restores of a checkpoint at these parallelisms would read, move, take and cost.

    Raises ParallelismError, naming the operator, or InvalidArgumentError.
    """
    if hosts and balance is not None:
        raise InvalidArgumentError(
            "hosts are chosen for Flink's even ranges; give either hosts or balance"
        )
    plans = {
        one: plan_target(manifest, RestoreTarget(parallelism=one, balance=balance), local)
        for one in parallelisms
    }
    return compare_plans(manifest, plans, hosts=hosts, strategy=strategy, rate=rate, prices=prices)
