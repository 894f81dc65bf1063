"""A seed gives the same calls and the same bytes in every process and on every machine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.maintenance import rekey_spill
from statestore.storage.local import sync_paths
from tests.simulate.digests import Digests, digests_of, recorded
from tests.simulate.disturbed import OTHER_VARIABLES, disturbed
from tests.simulate.plans import MIXES
from tests.simulate.pythons import differences
from tests.simulate.pythons import printed as printed_by
from tests.syntax import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_threads")]

DRAWN = random.randrange(2**32)


def _in_two_processes(
    folder: Path, module: str, *arguments: str, others: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the outputs of two processes that differ in everything that must not matter.

    The second one gets the arguments ``others`` too, and ``folder`` for its temporary files.
    """
    command = (sys.executable, "-m", module, *arguments)
    other = OTHER_VARIABLES | {"PYTHONHASHSEED": str(DRAWN), "TMPDIR": str(folder)}
    commands = {
        "hash seed 0": (command, {"PYTHONHASHSEED": "0"}),
        f"hash seed {DRAWN}": ((*command, *others), other),
    }
    processes = {
        name: subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )
        for name, (command, variables) in commands.items()
    }
    outputs = {name: process.communicate()[0] for name, process in processes.items()}
    assert {name: process.returncode for name, process in processes.items()} == dict.fromkeys(
        processes, 0
    )
    return outputs


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Digests]]:
    """The digests in both processes."""
    folder = tmp_path_factory.mktemp("a folder for temporary files with a long name")
    outputs = _in_two_processes(
        folder, "tests.simulate.digests", others=("--disturbed", str(DRAWN))
    )
    found = {
        name: dict(_digests_in(line) for line in output.splitlines())
        for name, output in outputs.items()
    }
    assert all([*digests] == [*MIXES] for digests in found.values())
    return found


@pytest.mark.long
def test_calls_and_files_are_the_same_in_every_process(
    printed: dict[str, dict[str, Digests]],
) -> None:
    one, other = printed
    assert printed[one] == printed[other], f"{one} and {other} differ"


@pytest.mark.long
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


@pytest.mark.search_program
def test_an_order_that_the_file_system_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_as_listed(paths: list[Path]) -> None:
        sync_paths([path for path in paths[0].parent.iterdir() if path.is_file()])

    assert len({_disturbed_rekeys(seed) for seed in range(3)}) == 1
    monkeypatch.setattr(rekey_spill, "sync_paths", sync_as_listed)
    assert len({_disturbed_rekeys(seed) for seed in range(3)}) > 1


@pytest.mark.long
@pytest.mark.parametrize(("subject", "least"), [("stores", 75), ("pages", 9)])
def test_generated_files_have_the_same_bytes_in_every_process(
    subject: str, least: int, tmp_path: Path
) -> None:
    first, second = _in_two_processes(tmp_path, "tests.simulate.same_bytes", subject).values()
    assert len(first.splitlines()) >= least
    assert first == second, f"hash seeds 0 and {DRAWN} differ"


@pytest.mark.long
def test_a_python_with_other_digests_is_reported() -> None:
    own = Path(sys.executable)
    lines = printed_by(own).splitlines()
    assert differences(own, "\n".join(lines)) == []
    other = [*lines[:-1], f"{lines[-1]}0"]
    assert differences(own, "\n".join(other))[-2:] == [f"-{other[-1]}", f"+{lines[-1]}"]


def _disturbed_rekeys(seed: int) -> str:
    with disturbed(seed):
        return digests_of(["rekeys"])["rekeys"].calls


def _digests_in(line: str) -> tuple[str, Digests]:
    mix, _, digests = line.partition(": ")
    calls, files = digests.split()
    return mix, Digests(calls, files)
