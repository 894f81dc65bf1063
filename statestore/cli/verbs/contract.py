"""``statestore contract``: write what a check needs to know about the old state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.contracts import contract_of_state
from statestore.cli.drawing import counted
from statestore.cli.options import checkpoint_argument
from statestore.cli.output import Output, Page
from statestore.contract.lock import write_lock

__all__ = ["write_contract"]


@dataclass(frozen=True, kw_only=True)
class WrittenContract:
    """A lock file that was written, and whether its content is new."""

    lock: str
    engine: str
    operators: int
    states: int
    is_changed: bool


@click.command(
    "contract",
    cls=Verb,
    section="Check and repair",
    prints=(
        "The lock file, and whether it has changed. PLACE is a store, a Spark checkpoint location, "
        "or a Flink savepoint or checkpoint. The file is sorted TOML with operators, states and "
        "columns. It has no data, keys, statistics or addresses. Commit it next to the job: "
        "'statestore check --lock' needs nothing else."
    ),
    examples=(
        "statestore contract ./fraud --to state.lock",
        "statestore contract ./checkpoints/orders --to state.lock --output json",
    ),
    has_store=False,
)
@click.argument("place")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The lock file.",
)
@checkpoint_argument
@pass_invocation
def write_contract(
    invocation: Invocation, place: str, to: Path, checkpoint: str
) -> Output[WrittenContract]:
    """Write what the state looks like to a file, for a check without access to the state."""
    contract = contract_of_state(invocation, place, checkpoint)
    is_changed = write_lock(to, contract)
    written = WrittenContract(
        lock=str(to),
        engine=contract.engine,
        operators=len(contract.operators),
        states=sum(len(operator.states) for operator in contract.operators),
        is_changed=is_changed,
    )
    return Output(written, write_written)


def write_written(page: Page, written: WrittenContract) -> None:
    """Write the lock file as text."""
    verb = "wrote" if written.is_changed else "unchanged:"
    page.line(f"{verb} {written.lock}", "bold")
    states = counted(written.states, "state")
    page.line(f"  {states} of {counted(written.operators, 'operator')}, engine {written.engine}")
