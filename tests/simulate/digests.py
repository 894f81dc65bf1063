"""Print the digests of some schedules, which are the same on every machine.

    python -m tests.simulate.digests

Prints a line for each mix: the digest of the calls, events and errors, and the digest of all files
that are left. ``digests.json`` keeps the first one.

* ``--write``, which ``make digests`` calls, writes it anew after a change of the calls.
* ``--trace MIX`` prints the calls themselves.
* ``--disturbed SEED`` runs the mixes in the opposite order, and lists folders in a drawn order. It
  must print the same.

The length of a data file decides the number of its parts, and a copy's name contains its SHA-256.
So the digests hold for one version of pyarrow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tests.simulate.disturbed import disturbed
from tests.simulate.plans import MIXES, drawn
from tests.simulate.simulation import Outcome, simulate

__all__ = ["RECORDED", "Digests", "Recorded", "digests_of", "recorded"]

RECORDED = Path(__file__).with_name("digests.json")
SEEDS = range(2)


@dataclass(frozen=True)
class Digests:
    """The digests of a mix's schedules: of their calls, and of the files that they leave."""

    calls: str
    files: str


@dataclass(frozen=True)
class Recorded:
    """The content of ``digests.json``: the digests of the calls by mix, and pyarrow's version."""

    pyarrow: str
    calls: dict[str, str]


def recorded() -> Recorded:
    """Return the digests in ``digests.json``."""
    return Recorded(**json.loads(RECORDED.read_text()))


def digests_of(mixes: Sequence[str]) -> dict[str, Digests]:
    """Return the digests of mixes; their schedules run in this order."""
    found = {}
    for mix in mixes:
        outcomes = [*_outcomes(mix)]
        calls = _digest([line for outcome in outcomes for line in _lines(outcome)])
        files = _digest([outcome.files for outcome in outcomes])
        found[mix] = Digests(calls, files)
    return found


def _outcomes(mix: str) -> Iterator[Outcome]:
    for seed in SEEDS:
        _, plan, chance = drawn(seed, (mix,))
        yield simulate(plan, chance, trace=True)


def _lines(outcome: Outcome) -> list[str]:
    wrong = [] if outcome.wrong is None else [": ".join(outcome.wrong)]
    return [str(outcome.plan), *outcome.trace, *outcome.errors, *wrong]


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulate.digests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help=f"write {RECORDED.name} anew")
    parser.add_argument("--trace", choices=[*MIXES], metavar="MIX", help="print its calls")
    parser.add_argument("--disturbed", type=int, metavar="SEED", help="as described above")
    asked = parser.parse_args(arguments)
    if asked.trace is not None:
        for outcome in _outcomes(asked.trace):
            print(*_lines(outcome), sep="\n")
        return
    is_disturbed = asked.disturbed is not None
    with disturbed(asked.disturbed) if is_disturbed else nullcontext():
        found = digests_of([*reversed(MIXES)] if is_disturbed else [*MIXES])
    if asked.write:
        content = {"pyarrow": pa.__version__, "calls": {mix: found[mix].calls for mix in MIXES}}
        RECORDED.write_text(json.dumps(content, indent=1) + "\n")
        return
    for mix in MIXES:
        print(f"{mix}: {found[mix].calls} {found[mix].files}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # without thousands of messages about replaced writers
    main()
