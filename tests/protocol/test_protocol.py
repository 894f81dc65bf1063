"""The model of the protocol: nothing is wrong in it, and what is put back is found."""

from __future__ import annotations

import pytest

from tests.protocol.model import FAULTS
from tests.protocol.run import SMALL, explore, main


def test_nothing_is_wrong_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    """I4, I6, I9; `make protocol` has more actors at once."""
    assert main(["--small"]) == 0
    said = capsys.readouterr().out
    assert said.count("nothing is wrong") == len(SMALL)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds(fault: str) -> None:
    found = (explore(first, frozenset({fault})) for first in SMALL)
    broken, way = next((broken, way) for _, broken, way in found if broken is not None)
    assert broken
    assert way


def test_the_command_prints_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--fault", "no second look"]) == 1
    assert "is held, and has lost" in capsys.readouterr().out
