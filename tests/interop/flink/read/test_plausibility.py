"""Damage that gives other valid values is no error, but its signs are warnings."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import StateStore
from statestore.cli.main import cli
from statestore.interop.flink import import_savepoint, show_savepoint
from statestore.interop.flink.read.plausibility import ImplausibleState, find_implausible_times
from statestore.interop.flink.read.savepoint import open_savepoint
from tests.interop.flink.goldens import Golden

CLASS = b"TtlStateFactory$TtlSerializerSnapshot"
YEAR_6486 = 1 << 47  # milliseconds: one flipped bit
NOW = 1_790_000_000_000


def replace_once(folder: Path, old: bytes, new: bytes) -> None:
    """Replace the first occurrence of some bytes in the files of a savepoint."""
    file = next(file for file in sorted(folder.iterdir()) if old in file.read_bytes())
    file.write_bytes(file.read_bytes().replace(old, new, 1))


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    return Golden("2.3_heap_canonical").unpack(tmp_path / "from")


def found(signs: tuple[ImplausibleState, ...]) -> set[tuple[str, str, str]]:
    return {(sign.operator, sign.state, sign.sign) for sign in signs}


@pytest.mark.parametrize("name", ["ttl_value", "ttl_list", "ttl_map"])
def test_a_last_access_in_the_year_6486_is_a_warning(
    name: str, savepoint: Path, tmp_path: Path
) -> None:
    """One flipped bit in a value, a later element of a list, or an entry of a map."""
    rows = next(open_savepoint(str(savepoint)).operator("kinds").rows(name))
    assert rows.value is not None
    values = rows.value.flatten() if name == "ttl_list" else rows.value
    time = values.field("last_access")[-1].as_py()
    before, after = struct.pack(">q", time), struct.pack(">q", time ^ YEAR_6486)
    replace_once(savepoint, before, after)
    shown = show_savepoint(str(savepoint))
    signs = [sign for operator in shown.operators for sign in operator.implausible]
    assert {(sign.operator, sign.sign) for sign in signs} == {("kinds", "time")}
    assert "to 6486" in signs[0].problem
    assert not any(operator.is_damaged or operator.problem for operator in shown.operators)


@pytest.mark.slow
def test_show_and_import_report_the_same_signs(savepoint: Path, tmp_path: Path) -> None:
    """A time and a class. The import succeeds, and states without a sign are not named."""
    replace_once(savepoint, CLASS, CLASS.replace(b"Ttl", b"Ttm", 1))
    rows = next(open_savepoint(str(savepoint)).operator("kinds").rows("ttl_value"))
    assert rows.value is not None
    time = rows.value.field("last_access")[0].as_py()
    replace_once(savepoint, struct.pack(">q", time), struct.pack(">q", -1))
    done = CliRunner().invoke(cli, ["flink", "show", str(savepoint)])
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("  implausible ")]
    shown = show_savepoint(str(savepoint)).operators
    signs = found(tuple(sign for operator in shown for sign in operator.implausible))
    assert {sign for _, _, sign in signs} == {"time", "class"}
    assert len(lines) == len(signs) == 2
    store = StateStore.open(str(tmp_path / "store"))
    imported = import_savepoint(str(savepoint), store)
    assert found(imported.implausible) == signs
    assert import_savepoint(str(savepoint), store).implausible == ()
    arguments = ["flink", "import", str(savepoint), "--store", str(tmp_path / "other")]
    other = CliRunner().invoke(cli, arguments)
    assert (other.exit_code, other.stdout.count("\nimplausible: ")) == (0, 2)


@pytest.mark.parametrize("times", [(), ((NOW, NOW),), ((1_533_772_800_000, NOW), (NOW, NOW))])
def test_times_of_a_job_are_plausible(times: tuple[tuple[int, int], ...]) -> None:
    assert not list(find_implausible_times("by_user", "cart", times))


@pytest.mark.parametrize("times", [(0, NOW), (NOW, 1 << 62), (-(1 << 63), NOW)])
def test_other_times_name_their_years(times: tuple[int, int]) -> None:
    (sign,) = find_implausible_times("by_user", "cart", [(NOW, NOW), times])
    assert (sign.operator, sign.state, sign.sign) == ("by_user", "cart", "time")
    assert "no Flink before 2018 had a TTL" in sign.problem
