"""The parts of a plan as people see them: key groups cut for each parallelism, subtasks as bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from statestore.cli.drawing import bar, key_group_bars, span_text, spans
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.units import count, counted, size
from statestore.keys.ranges import RangeAssignment
from statestore.restore.placement import OperatorPlacement
from statestore.restore.plan import OperatorPlan, RestorePlan, SubtaskPlan

__all__ = ["write_key_groups", "write_placements", "write_subtasks"]

MOST_LINES = 64
GAP = 2
NARROWEST_BAR, WIDEST_BAR = 8, 30


def write_key_groups(page: Page, plan: RestorePlan) -> None:
    """Write, for every max parallelism in the plan, its key groups cut for both parallelisms."""
    parallelisms = tuple(dict.fromkeys((plan.old_parallelism, plan.parallelism)))
    known = {operator.max_parallelism for operator in plan.operators}
    for max_parallelism in sorted(number for number in known if number is not None):
        page.line()
        fitting = [parallelism for parallelism in parallelisms if parallelism <= max_parallelism]
        others = [
            (f"ranges of {operator.uid}", operator.assignment.ranges())
            for operator in plan.operators
            if operator.max_parallelism == max_parallelism
            and isinstance(operator.assignment, RangeAssignment)
        ]
        for line in key_group_bars(
            max_parallelism, fitting, width=page.width, pen=page.pen, others=others
        ):
            page.line(line)


def write_subtasks(page: Page, operator: OperatorPlan) -> None:
    """Write what each subtask reads, with a bar for its rows.

    On a terminal many subtasks are summed up in at most 64 lines; elsewhere each has its line.
    """
    subtasks = operator.subtasks
    parts = spans(len(subtasks), MOST_LINES if page.terminal else len(subtasks))
    summed = [subtasks[part.start : part.stop] for part in parts]
    keyed = operator.max_parallelism is not None
    columns = [_columns(part, page) for part in summed]
    names = ["subtask", "key groups", "rows", "elements", "bytes", "files", "requests"]
    if not keyed:
        names.remove("key groups")
        names.remove("rows")
    elif not any(subtask.elements for subtask in subtasks):
        names.remove("elements")
    layered = operator.read_amplification is not None
    titles = ["rows read" if layered and name == "rows" else name for name in names]
    widths = [
        max(len(title), *(len(values[name]) for values in columns))
        for name, title in zip(names, titles, strict=True)
    ]
    room = page.width - sum(width + GAP for width in widths)
    width = min(max(room, NARROWEST_BAR), WIDEST_BAR)
    weights = [_weight(part, keyed) for part in summed]
    most = max(weights)
    drawn = [bar(weight, most, width=width, pen=page.pen) for weight in weights]
    at = names.index("rows" if keyed else "elements") + 1
    page.line()
    page.line(_line(titles, widths, at, " " * width), "bold")
    for values, drawing in zip(columns, drawn, strict=True):
        page.line(_line([values[name] for name in names], widths, at, f"{drawing:<{width}}"))
    if len(summed) < len(subtasks):
        page.line(f"a line sums up to {max(map(len, summed))} subtasks; --output json has each")
    _write_extremes(page, subtasks)
    if operator.read_amplification is None:
        return
    changed = sum(subtask.changed_rows for subtask in subtasks)
    if not changed:
        page.line(
            f"of key groups of another number {operator.read_amplification:.2f} rows are read for "
            "each that is kept"
        )
    else:
        page.line(
            f"{counted(changed, 'row')} of these {'is a change' if changed == 1 else 'are changes'}"
            f": {operator.read_amplification:.2f} rows are read for each of the base"
        )


def _line(cells: Sequence[str], widths: Sequence[int], at: int, drawing: str) -> str:
    """Return one line, numbers to the right, the drawing before cell ``at``; rich is slow at it."""
    parts = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    parts.insert(at, drawing)
    return (" " * GAP).join(parts)


def _weight(part: Sequence[SubtaskPlan], keyed: bool) -> int:
    return sum(subtask.rows if keyed else subtask.elements for subtask in part)


def _columns(part: Sequence[SubtaskPlan], page: Page) -> dict[str, str]:
    first, last = part[0], part[-1]
    groups = ""
    if first.key_groups is not None and last.key_groups is not None:
        groups = span_text(first.key_groups.first, last.key_groups.last, page.pen)
    return {
        "subtask": span_text(first.subtask, last.subtask, page.pen),
        "key groups": groups,
        "rows": count(sum(subtask.rows for subtask in part)),
        "elements": count(sum(subtask.elements for subtask in part)),
        "bytes": size(sum(subtask.size_bytes for subtask in part)),
        "files": count(sum(subtask.files for subtask in part)),
        "requests": count(sum(subtask.requests for subtask in part)),
    }


def _write_extremes(page: Page, subtasks: Sequence[SubtaskPlan]) -> None:
    """Say how uneven the rows are: the slowest subtask decides how long a restore takes."""
    rows = [subtask.rows for subtask in subtasks]
    if len(subtasks) < 2 or not any(rows):
        return
    most = rows.index(max(rows))
    ratio = rows[most] * len(rows) / sum(rows)
    page.line(
        f"most rows: subtask {most} with {count(rows[most])}, {ratio:.2f} times the mean; "
        f"fewest: {count(min(rows))}"
    )


def write_placements(
    page: Page, placements: Sequence[OperatorPlacement], plan: RestorePlan
) -> None:
    """Write the host of each slot, and what of each operator lies there, by slot sharing group."""
    groups: dict[str, list[OperatorPlacement]] = {}
    for one in placements:
        groups.setdefault(one.slot_group, []).append(one)
    total = size(sum(task.size_bytes for one in plan.operators for task in one.subtasks))
    local = size(sum(one.local_bytes for one in placements))
    for number, (group, members) in enumerate(groups.items()):
        page.line()
        if not number:
            page.line(f"on hosts, {members[0].strategy}: {local} of {total} stay local", "bold")
        named = "" if len(groups) == 1 else f"slot sharing group {group}: "
        page.line(f"{named}a subtask of each operator in one slot; local bytes of each")
        page.table(_placement_table(members))


def _placement_table(members: Sequence[OperatorPlacement]) -> Table:
    uids = [one.uid for one in members]
    table = table_of("subtask", "host", *uids, right={"subtask", *uids})
    for number in range(max(len(one.subtasks) for one in members)):
        here = [one.subtasks[number] if number < len(one.subtasks) else None for one in members]
        host = next(placed.host for placed in here if placed)
        bytes_there = ["-" if one is None else size(one.local_bytes) for one in here]
        table.add_row(*map(cell, (str(number), host, *bytes_there)))
    return table
