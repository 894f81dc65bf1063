"""A seed gives the same calls and the same bytes in every process and on every machine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.maintenance import rekey_folder
from statestore.storage.durable import sync_paths
from tests.simulate.digests import Digests, digests_of, recorded
from tests.simulate.disturbed import OTHER_VARIABLES, disturbed
from tests.simulate.plans import MIXES
from tests.simulate.pythons import differences
from tests.syntax import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_threads")]

COMMAND = (sys.executable, "-m", "tests.simulate.digests")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Digests]]:
    """The digests in two processes that differ in everything that must not matter."""
    folder = tmp_path_factory.mktemp("a folder for temporary files with a long name")
    drawn = random.randrange(2**32)
    other = OTHER_VARIABLES | {"PYTHONHASHSEED": str(drawn), "TMPDIR": str(folder)}
    commands = {
        "hash seed 0": ((*COMMAND,), {"PYTHONHASHSEED": "0"}),
        f"hash seed {drawn}": ((*COMMAND, "--disturbed", str(drawn)), other),
    }
    processes = {
        name: subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )
        for name, (command, variables) in commands.items()
    }
    found = {}
    for name, process in processes.items():
        output, _ = process.communicate()
        assert process.returncode == 0, name
        found[name] = dict(_digests_in(line) for line in output.splitlines())
        assert [*found[name]] == [*MIXES]
    return found


def test_calls_and_files_are_the_same_in_every_process(
    printed: dict[str, dict[str, Digests]],
) -> None:
    one, other = printed
    assert printed[one] == printed[other], f"{one} and {other} differ"


def test_the_calls_are_as_recorded_on_another_machine(
    printed: dict[str, dict[str, Digests]],
) -> None:
    known = recorded()
    assert known.pyarrow == pa.__version__, "after an update of pyarrow, run `make digests`"
    for name, found in printed.items():
        calls = {mix: digests.calls for mix, digests in found.items()}
        changed = [mix for mix in MIXES if known.calls.get(mix) != calls[mix]]
        assert not changed, (
            f"with {name} these mixes have other calls than in digests.json: {changed}. If your "
            "change adds, removes or moves calls, run `make digests`. Otherwise compare the output "
            "of `python -m tests.simulate.digests --trace MIX` with another tree's or machine's"
        )
    assert [*known.calls] == [*MIXES]


def test_an_order_that_the_file_system_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_as_listed(paths: list[Path]) -> None:
        sync_paths([path for path in paths[0].parent.iterdir() if path.is_file()])

    assert len({_disturbed_rekeys(seed) for seed in range(3)}) == 1
    monkeypatch.setattr(rekey_folder, "sync_paths", sync_as_listed)
    assert len({_disturbed_rekeys(seed) for seed in range(3)}) > 1


@pytest.mark.long
def test_a_python_with_other_digests_is_reported(printed: dict[str, dict[str, Digests]]) -> None:
    own = next(iter(printed.values()))
    lines = [f"{mix}: {digests.calls} {digests.files}" for mix, digests in own.items()]
    assert differences(Path(sys.executable), "\n".join(lines)) == []
    other = [*lines[:-1], lines[-1].replace(own["all"].files, "0" * 16)]
    found = differences(Path(sys.executable), "\n".join(other))
    assert [line for line in found if line[:4] in ("-all", "+all")] == [
        f"-{other[-1]}",
        f"+{lines[-1]}",
    ]


def _disturbed_rekeys(seed: int) -> str:
    with disturbed(seed):
        return digests_of(["rekeys"])["rekeys"].calls


def _digests_in(line: str) -> tuple[str, Digests]:
    mix, _, digests = line.partition(": ")
    calls, files = digests.split()
    return mix, Digests(calls, files)
