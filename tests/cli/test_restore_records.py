"""The file with the measured restores of each store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.cli.restore_records import (
    MOST_RESTORES,
    MOST_STORES,
    keep_restore,
    kept_restores,
    rates_file,
    speed_text,
)
from statestore.restore.restart_time import MeasuredRestore, RestoreSpeed

ONE = MeasuredRestore(
    at_ms=3, checkpoint_id=2, parallelism=4, size_bytes=1000, requests=9, seconds=2.0
)


def test_the_last_restores_of_a_store_are_kept_in_order(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert kept_restores(environment, "s") == ()
    for number in range(MOST_RESTORES + 5):
        keep_restore(environment, "s", replace(ONE, at_ms=number))
    found = [restore.at_ms for restore in kept_restores(environment, "s")]
    assert found == [*range(5, MOST_RESTORES + 5)]
    assert kept_restores(environment, "other") == ()


def test_the_last_stores_are_kept(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for number in range(MOST_STORES + 5):
        keep_restore(environment, f"s{number}", replace(ONE, at_ms=number))
    assert kept_restores(environment, "s4") == ()
    assert kept_restores(environment, "s5") == (replace(ONE, at_ms=5),)
    assert len(json.loads(rates_file(environment).read_text())) == MOST_STORES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"s": 1}',
        '{"s": [{"size_bytes": 0}]}',
        '{"s": {"size_bytes": 64000000, "seconds": 2.0, "at_ms": 3}}',  # of release 0.1.0
        json.dumps({"s": [vars(ONE) | {"seconds": 0}]}),
        json.dumps({"s": [vars(ONE) | {"seconds": "1"}]}),
    ],
)
def test_a_damaged_file_or_one_of_an_older_release_is_ignored(tmp_path: Path, text: str) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    file = rates_file(environment)
    file.parent.mkdir()
    file.write_text(text)
    assert kept_restores(environment, "s") == ()
    keep_restore(environment, "s", ONE)
    assert kept_restores(environment, "s") == (ONE,)
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_missing_cache_folder_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    keep_restore(environment, "s", ONE)
    assert kept_restores(environment, "s") == ()


def test_a_user_without_a_home_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    keep_restore({}, "s", ONE)
    assert kept_restores({}, "s") == ()


def test_the_text_has_only_what_takes_time() -> None:
    assert speed_text(RestoreSpeed.of(100e6)) == "100.0 MB/s"
    speed = RestoreSpeed(seconds_per_request=0.02, seconds_at_least=1.5)
    assert speed_text(speed) == "20 ms per request, 1.5 s in any case"
