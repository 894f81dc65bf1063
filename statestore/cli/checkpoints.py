"""Show a checkpoint, its plan, skew and changed rows as JSON and text, with subtasks as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.cli.drawing import (
    bar,
    count,
    counted,
    key_group_bars,
    size,
    span_text,
    spans,
)
from statestore.cli.output import Page, TextTable, json_text, table_of
from statestore.format.digest import digest_text
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.keys.groups import KeyGroupRange, RangeAssignment
from statestore.restore.key_group_weights import Weight
from statestore.restore.placement import OperatorPlacement
from statestore.restore.plan import OperatorPlan, ParallelismChoice, RestorePlan, SubtaskPlan
from statestore.restore.skew import RangeSkew

if TYPE_CHECKING:
    from statestore.maintenance.derive import DerivedReport
    from statestore.maintenance.diff_report import Example

__all__ = [
    "ShownLayer",
    "changed_rows",
    "layers_text",
    "shown_layers",
    "write_choices",
    "write_derived",
    "write_key_groups",
    "write_left_out",
    "write_placements",
    "write_row_changes",
    "write_skew",
    "write_subtasks",
]

MOST_LINES = 64
"""How many bars a terminal gets, one below the other."""
GAP = 2


def write_derived(page: Page, report: DerivedReport) -> None:
    """Write the checkpoints that a command undoes, and the state that its result lacks."""
    if report.undone:
        first, last = report.undone[0], report.undone[-1]
        which = f"checkpoint {first}" if first == last else f"checkpoints {first} to {last}"
        undoes = "would undo" if report.dry_run else "undoes"
        page.line(f"  {undoes} {which}: the next snapshot builds on the new checkpoint")
    write_left_out(page, report.left_out)


def write_left_out(page: Page, records: Iterable[LeftOutState], indent: str = "  ") -> None:
    """Write one line about the source's state that a checkpoint omits; nothing if it omits none."""
    for record in records:
        page.line(f"{indent}left out  {record}")


@dataclass(frozen=True)
class ShownLayer:
    """Changes of a state, and the key groups in which they apply."""

    checkpoint_id: int
    depth: int
    rows: int
    size_bytes: int
    files: int
    live: tuple[KeyGroupRange, ...]


def shown_layers(entry: KeyedEntry) -> tuple[ShownLayer, ...]:
    """Return the changes of a state, oldest first."""
    return tuple(
        ShownLayer(
            checkpoint_id=layer.checkpoint_id,
            depth=layer.depth,
            rows=layer.entry.rows,
            size_bytes=layer.entry.size_bytes,
            files=layer.entry.files,
            live=layer.live,
        )
        for layer in entry.layers
    )


def layers_text(entry: KeyedEntry, base: str) -> list[tuple[str, str]]:
    """Return the lines of ``show`` about a state with changes; ``base`` describes its base."""
    parts = [layer.entry for layer in entry.layers]
    changed = sum(part.size_bytes for part in parts)
    files = sum(part.files for part in parts)
    stored = f"{counted(files, 'file')} of {counted(len(parts), 'layer')}"
    known = entry.contents
    merged = "known after the state is read"
    if known is not None:
        merged = f"{counted(known.rows, 'row')}, digest {digest_text(known.digest)}"
    return [
        ("merged rows", merged),
        ("base", base),
        ("digest of base", digest_text(entry.parts[0].digest)),
        (
            "changes",
            f"{counted(entry.changed_rows, 'row')}, {size(changed)} in {stored}",
        ),
    ]


def changed_rows(manifest: Manifest) -> int:
    """Return the number of rows of changes."""
    return sum(entry.changed_rows for entry in manifest.keyed)


def write_choices(page: Page, choices: tuple[ParallelismChoice, ...], parallelism: int) -> None:
    """Write how a parallelism was chosen from the sizes of the key groups."""
    page.line(f"parallelism {parallelism} is chosen from the stored bytes:", "bold")
    for choice in choices:
        decision = choice.decision
        page.line(
            f"  {choice.operator}: {size(decision.total_bytes)} of keyed state; first guess "
            f"{decision.first_guess}, divided by bytes into "
            f"{counted(len(decision.byte_ranges), 'range')}: parallelism "
            f"{decision.parallelism}; the largest subtask gets "
            f"{size(decision.largest_by_number)} (with ranges divided by bytes: "
            f"{size(decision.largest_by_bytes)})"
        )


def write_key_groups(page: Page, plan: RestorePlan) -> None:
    """Draw, for each max parallelism in the plan, its key groups divided for both parallelisms."""
    parallelisms = tuple(dict.fromkeys((plan.old_parallelism, plan.parallelism)))
    known = {operator.max_parallelism for operator in plan.operators}
    for max_parallelism in sorted(number for number in known if number is not None):
        page.line()
        fitting = [parallelism for parallelism in parallelisms if parallelism <= max_parallelism]
        others = [
            (f"ranges of {operator.operator}", operator.assignment.ranges())
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

    On a terminal, many subtasks are summarized in at most 64 lines; elsewhere each has its line.
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
    width = _bar_width(room)
    weights = [
        sum(subtask.rows if keyed else subtask.elements for subtask in part) for part in summed
    ]
    most = max(weights)
    drawn = [bar(weight, most, width=width, pen=page.pen) for weight in weights]
    drawing_index = names.index("rows" if keyed else "elements") + 1
    page.line()
    page.line(_line(titles, widths, drawing_index, " " * width), "bold")
    for values, drawing in zip(columns, drawn, strict=True):
        page.line(
            _line([values[name] for name in names], widths, drawing_index, f"{drawing:<{width}}")
        )
    if len(summed) < len(subtasks):
        page.line(
            f"each line summarizes up to {max(map(len, summed))} subtasks; --output json lists "
            "each of them"
        )
    _write_extremes(page, subtasks)
    _write_read_amplification(page, operator)
    for plan in operator.keyed:
        if (ttl := plan.entry.state.ttl) is not None and ttl.hides:
            page.line(
                f"rows of {plan.entry.state.name} may be expired (TTL {ttl.duration} after "
                f"{ttl.column}); a restore leaves them out"
            )


def _line(cells: Sequence[str], widths: Sequence[int], drawing_index: int, drawing: str) -> str:
    """Format one line, with right-aligned numbers and the drawing before cell ``drawing_index``.

    This avoids rich's tables, which are slow.
    """
    parts = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    parts.insert(drawing_index, drawing)
    return (" " * GAP).join(parts)


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
    """Write how uneven the rows are, because the slowest subtask determines the restore time."""
    rows = [subtask.rows for subtask in subtasks]
    if len(subtasks) < 2 or not any(rows):
        return
    most = rows.index(max(rows))
    ratio = rows[most] * len(rows) / sum(rows)
    page.line(
        f"most rows: subtask {most} with {count(rows[most])}, {ratio:.2f} times the mean; "
        f"fewest: {count(min(rows))}"
    )


def _write_read_amplification(page: Page, operator: OperatorPlan) -> None:
    """Write how many rows are read in addition to those that the subtasks keep, and why."""
    if operator.read_amplification is None:
        return
    changed = sum(subtask.changed_rows for subtask in operator.subtasks)
    if not changed:
        page.line(
            f"because the number of key groups differs, {operator.read_amplification:.2f} "
            "rows are read for each row that is kept"
        )
    else:
        page.line(
            f"{counted(changed, 'row')} of these "
            f"{'is a change' if changed == 1 else 'are changes'}: "
            f"{operator.read_amplification:.2f} rows are read for each row of the base"
        )


def write_placements(
    page: Page, placements: Sequence[OperatorPlacement], plan: RestorePlan
) -> None:
    """Write the host of each slot with its local state, by slot sharing group."""
    groups: dict[str, list[OperatorPlacement]] = {}
    for placement in placements:
        groups.setdefault(placement.slot_group, []).append(placement)
    total = size(sum(task.size_bytes for operator in plan.operators for task in operator.subtasks))
    local = size(sum(placement.local_bytes for placement in placements))
    for number, (group, members) in enumerate(groups.items()):
        page.line()
        if not number:
            page.line(
                f"placement on hosts, {members[0].strategy}: {local} of {total} are read locally",
                "bold",
            )
        named = "" if len(groups) == 1 else f"slot sharing group {group}: "
        page.line(
            f"{named}each slot has one subtask of every operator; the table shows local bytes"
        )
        page.table(_placement_table(members))


def _placement_table(members: Sequence[OperatorPlacement]) -> TextTable:
    uids = [member.operator for member in members]
    table = table_of("subtask", "host", *uids, right={"subtask", *uids})
    for number in range(max(len(member.subtasks) for member in members)):
        here = [
            member.subtasks[number] if number < len(member.subtasks) else None for member in members
        ]
        host = next(placed.host for placed in here if placed)
        bytes_there = [
            "-" if placement is None else size(placement.local_bytes) for placement in here
        ]
        table.add_row(str(number), host, *bytes_there)
    return table


def write_skew(page: Page, skew: RangeSkew) -> None:
    """Draw an operator's subtasks with even ranges next to its subtasks with balanced ranges.

    On a terminal with many subtasks, a line stands for several and shows the largest of them.
    """
    number = len(skew.even)
    parts = spans(number, MOST_LINES if page.terminal else number)
    even = [max(skew.even[part.start : part.stop]) for part in parts]
    other = [max(skew.balanced[part.start : part.stop]) for part in parts]
    names = [span_text(part.start, part.stop - 1, page.pen) for part in parts]
    numbers = [[_weight_text(skew.by, value) for value in side] for side in (even, other)]
    titles = ("subtask", f"even {skew.by.value}", f"balanced {skew.by.value}")
    widths = [
        max(len(title), *map(len, cells))
        for title, cells in zip(titles, (names, *numbers), strict=True)
    ]
    room = (page.width - sum(widths) - 4 * GAP) // 2
    width = _bar_width(room)
    most = max(*even, *other)
    page.line()
    page.line(f"operator {skew.operator}: ranges by number of key groups, and by {skew.by.value}")
    page.line(_skew_line(titles, widths, (" " * width, "")), "bold")
    for name, left, right, even_share, balanced_share in zip(
        names, *numbers, even, other, strict=True
    ):
        bars = [
            f"{bar(value, most, width=width, pen=page.pen):<{width}}"
            for value in (even_share, balanced_share)
        ]
        page.line(_skew_line((name, left, right), widths, bars))
    page.line(
        f"largest subtask: {_weight_text(skew.by, max(skew.even))} with even ranges, "
        f"{skew.ratio(skew.even):.2f} times the mean; {_weight_text(skew.by, max(skew.balanced))} "
        f"with balanced ranges, {skew.ratio(skew.balanced):.2f} times the mean; even ranges are "
        f"{skew.gain:.2f} times as large"
    )


def _skew_line(cells: Sequence[str], widths: Sequence[int], bars: Sequence[str]) -> str:
    name, left, right = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    gap = " " * GAP
    return gap.join((name, left, bars[0], right, bars[1])).rstrip()


def _weight_text(by: Weight, value: int) -> str:
    return size(value) if by is Weight.BYTES else count(value)


def _bar_width(room: int) -> int:
    """Return the length of bars, 8 to 30, for the available ``room``."""
    return min(max(room, 8), 30)


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}


def write_row_changes(page: Page, examples: Sequence[Example], *, total: int) -> None:
    """Write one line for each row, and ``…`` if there are more than these.

    A changed row is its identity, and each changed column before and after.
    """
    for example in examples:
        group = "" if example.key_group is None else f"  (key group {example.key_group})"
        text = f"  {_SIGNS[example.change]} {_row_text(example)}{group}"
        page.line(text, _STYLES[example.change])
    if examples and len(examples) < total:
        page.line("  …")


def _row_text(example: Example) -> str:
    before, after = example.a, example.b
    if before is None or after is None:
        return json_text(dict(before or after or {}))
    names = dict.fromkeys([*before, *after])
    differ = [name for name in names if _text(before, name) != _text(after, name)]
    # An element of operator state has no identity: its other columns tell which one it is.
    known = example.identity or {name: before[name] for name in names if name not in differ}
    changes = [f"{name}: {_text(before, name)} → {_text(after, name)}" for name in differ]
    return "  ".join([*([json_text(dict(known))] if known else []), *changes])


def _text(row: Mapping[str, Any], name: str) -> str:
    return json_text(row[name]) if name in row else "no column"
