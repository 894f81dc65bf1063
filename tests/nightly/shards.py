"""The shards of the nightly: commands of at most a quarter of an hour."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bench.run import SECTIONS
from tests.nightly.groups import DELTA, FLINK, GROUPS, SERVERS, SPARKS
from tests.support.durations import DURATIONS
from tests.support.module_tests import RECORDING
from tests.syntax import ROOT

__all__ = ["EMPTY_FOLDER", "MINUTES", "SEED", "SHARDS", "Shard"]

SEED = "{seed}"
"""In a command, the place of the seed, which is the date as a number."""
EMPTY_FOLDER = "{folder}"
"""In a command, the place of a folder for results, which is emptied before."""
MINUTES = 30
"""The limit of a shard, which is made for a quarter of an hour on an idle machine."""
SECTIONS_PER_SHARD = 3
QUICK = ("-m", "not spark and not slow and not flink and not long", "--hypothesis-profile", "quick")
_PYTHON = (sys.executable, "-m")


@dataclass(frozen=True, slots=True)
class Shard:
    """A command of the nightly.

    ``needs`` has targets of make and files of other shards, which are paths, and programs of the
    machine. A shard is not run if one of them is missing and cannot be made.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()


def _shards() -> Iterator[Shard]:
    for group, (count, needs) in GROUPS.items():
        command = (*_PYTHON, "pytest", "--hypothesis-profile", "long", "--nightly", group)
        if count == 1:
            yield Shard(group, command, needs)
        for part in range(1, count + 1) if count > 1 else ():
            split = ("--splits", f"{count}", "--group", f"{part}", "--durations-path")
            yield Shard(f"{group} {part}", (*command, *split, str(DURATIONS)), needs)
    # The lines that each test runs: for the mutants, and for the list of each module's tests.
    quick = (*_PYTHON, "pytest", *QUICK, "--numprocesses", "2")
    cover = ("--cov", "--cov-report", "", "--cov-context", "test")
    yield Shard("coverage", ("env", f"COVERAGE_FILE={RECORDING}", *quick, *cover))
    mutants = ("tests.mutants.run", "--seconds", "480", "--count", "100", "--seed", SEED)
    yield Shard("mutants", (*_PYTHON, *mutants), (str(RECORDING.relative_to(ROOT)),))
    for version in SPARKS:
        yield Shard(f"Spark {version}", ("make", "test-spark", f"SPARK={version}"))
    yield Shard("newest packages", ("make", "test-newest"))
    yield Shard("other Pythons", (*_PYTHON, "tests.simulate.pythons"), ("build/.simulate-pythons",))
    yield Shard("cluster demo", (*_PYTHON, "tests.servers.cluster_demo"), SERVERS)
    yield from _searches()
    for start in range(0, len(SECTIONS), SECTIONS_PER_SHARD):
        sections = SECTIONS[start : start + SECTIONS_PER_SHARD]
        lines = [line for section in sections for line in section.targets]
        measure = (*_PYTHON, "bench.run", "--repeats", "3", "--only", *lines)
        yield Shard(f"bench {start // SECTIONS_PER_SHARD + 1}", measure, FLINK)


def _searches() -> Iterator[Shard]:
    """Yield the programs that search for rare errors, each with the work of some minutes."""
    for name, arguments, needs in (
        ("races", ("--races", "1000", "--seconds", "300"), (".venv/.go-programs",)),
        ("races on S3", ("--races", "1000", "--seconds", "300", "--s3"), (".venv/.s3",)),
        ("simulate", ("--judge", "--steps", "4000"), ()),
        ("fuzz", ("--histories", "1500"), DELTA),
        ("damages to footers", ("--count", "4000", "--subject", "footers"), ()),
        ("damages to savepoints", ("--count", "4000", "--subject", "savepoints"), ()),
        ("power", ("--draws", "3"), ("gcc",)),
    ):
        program = f"tests.{name.partition(' ')[0]}.run"
        yield Shard(name, (*_PYTHON, program, *arguments, "--seed", SEED), needs)
    yield Shard("protocol", (*_PYTHON, "tests.protocol.run", "--small"))
    kills = ("--count", "20", "--seed", SEED)
    yield Shard("kills", (*_PYTHON, "tests.faults.kills", *kills), DELTA)
    yield Shard("kills of live queries", (*_PYTHON, "tests.streaming.kills", *kills), DELTA)
    endurance = ("--minutes", "10", "--to", EMPTY_FOLDER, "--seed", SEED)
    yield Shard("endurance", (*_PYTHON, "tests.endurance", *endurance), DELTA)


SHARDS = tuple(_shards())
