"""Tables as the text output has them."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from statestore.cli.output import printable

__all__ = ["cell", "table_of"]


def table_of(*columns: str, right: frozenset[str] | set[str] = frozenset()) -> Table:
    """Return an empty table; what does not fit the terminal is folded, never cut off."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        side = "right" if name in right else "left"
        table.add_column(cell(name), justify=side, overflow="fold")  # type: ignore[arg-type]
    return table


def cell(text: str) -> Text:
    """Return a cell's text as it is, without control characters or markup."""
    return Text(printable(text))
