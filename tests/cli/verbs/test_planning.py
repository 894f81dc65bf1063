"""The output of ``plan`` before a restore (balance, another max parallelism, comparisons) and of
``show --skew``.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore
from statestore.cli.verbs.plan import (
    LEAST_BYTES,
    MOST_STORES,
    Rate,
    keep_rate,
    kept_rate,
    rates_file,
)
from statestore.restore.compare_plans import Prices

Run = Callable[..., Result]
PRICES = Path(__file__).parents[3] / "conf" / "prices.toml"


def document(done: Result) -> dict:  # type: ignore[type-arg]
    assert (done.exit_code, done.stderr) == (0, "")
    found: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return found


def test_balance_shows_both_distributions(run: Run, fraud: Path) -> None:
    given = ("plan", "--parallelism", "5", "--balance", "rows", "--store", fraud)
    done = run(*given)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "operator totals-by-user: ranges by number of key groups, and by rows" in done.stdout
    assert re.search(r"^ +4 +\d+ +█.* +\d+ +█", done.stdout, re.MULTILINE)
    skews = {one["operator"]: one for one in document(run(*given, "--output", "json"))["skews"]}
    assert sorted(skews) == ["totals-by-card", "totals-by-shop", "totals-by-user"]
    store = StateStore.open(str(fraud))
    for known in store.inspect.balance(store.plan(parallelism=5), by="rows"):
        found = skews[known.operator]
        assert found["even"] == list(known.even)
        assert found["balanced"] == list(known.balanced)
        assert max(found["balanced"]) <= max(found["even"])
    largest = max(skews["totals-by-user"]["even"])
    assert re.search(
        rf"^largest subtask: {largest} with even ranges, \d\.\d\d times the mean; ",
        done.stdout,
        re.M,
    )


def test_balanced_ranges_are_drawn(run: Run, fraud: Path) -> None:
    done = run("plan", "--parallelism", "2", "--balance", "rows", "--store", fraud)
    assert re.search(r"^ranges of totals-by-user +\[.*0–\d+ .*\]\[.*–15 .*\]$", done.stdout, re.M)


@pytest.mark.parametrize("way", [("--max-parallelism", "16"), ("--balance", "bytes")])
def test_restore_follows_the_plan(run: Run, fraud: Path, way: tuple[str, str]) -> None:
    one = ("--state", "totals-by-shop", "--parallelism", "3", *way, "--store", fraud)
    planned = document(run("plan", *one, "--output", "json"))
    (operator,) = planned["plan"]["operators"]
    written = document(run("restore", *one, "--to", "out", "--output", "json"))
    (state,) = written["exported"]["states"]
    assert state["proof"]["stored"]["rows"] == 3
    assert sum(part["rows"] for part in state["proof"]["subtasks"]) == 3
    if way[0] == "--max-parallelism":
        assert operator["max_parallelism"] == 16
        assert operator["read_amplification"] >= 1
    else:
        assert [p["rows"] for p in state["proof"]["subtasks"]] == [
            subtask["rows"] for subtask in operator["subtasks"]
        ]


def test_the_read_amplification_is_shown(run: Run, fraud: Path) -> None:
    done = run("plan", "--parallelism", "3", "--max-parallelism", "256", "--store", fraud)
    assert "rows are read for each row that is kept" in done.stdout
    refused = run("plan", "--parallelism", "3", "--max-parallelism", "12", "--store", fraud)
    assert (refused.exit_code, refused.stdout) == (12, "")
    assert "statestore rekey" in refused.stderr


def test_compare_shows_every_option_and_the_best(run: Run, fraud: Path) -> None:
    given = ("plan", "--parallelism", "7,2,4", "--store", fraud)
    found = document(run(*given, "--output", "json", env={"STATESTORE_RESTORE_RATE": "1MB/s"}))[
        "comparison"
    ]
    known = StateStore.open(str(fraud)).inspect.compare([2, 4, 7], rate=1_000_000)
    assert [one["parallelism"] for one in found["options"]] == [2, 4, 7]
    assert found["options"][1]["moved_bytes"] == 0  # checkpoint 2 was taken at parallelism 4
    assert [one["seconds"] for one in found["options"]] == [
        option.seconds for option in known.options
    ]
    assert (found["chosen"], found["why"]) == (known.chosen, known.why)
    assert found["options"][0]["money"] is None
    done = run(*given)
    assert f"recommended parallelism {known.chosen}: " in done.stdout
    assert "time: unknown, because no restore of at least 64.0 MB was recorded" in done.stdout
    assert re.search(rf"^-> +{known.chosen} ", done.stdout, re.MULTILINE)


def test_compare_with_prices(run: Run, fraud: Path) -> None:
    given = ("plan", "--parallelism", "2,4,8", "--store", fraud)
    prices = {"STATESTORE_PRICES": str(PRICES)}
    rate = {"STATESTORE_RESTORE_RATE": "200MB/s"}
    done = run(*given, env=prices | rate)
    assert "cost USD" in done.stdout
    assert "0.05 USD per subtask hour" in done.stdout
    found = document(run(*given, "--output", "json", env=prices | rate))["comparison"]
    assert Prices.of(found["prices"]).currency == "USD"
    assert found["chosen"] in (2, 4, 8)
    assert (
        "subtask hours are not included because the time is unknown"
        in run(*given, env=prices).stdout
    )


def test_compare_on_hosts(run: Run, fraud: Path) -> None:
    given = ("plan", "--parallelism", "2,3", "--hosts", "a=2,b=1", "--store", fraud)
    found = document(run(*given, "--output", "json"))["comparison"]
    keyed = StateStore.open(str(fraud)).checkpoint().manifest.keyed
    everything = sum(entry.size_bytes for entry in keyed)  # no host has a copy
    assert [one["moved_bytes"] for one in found["options"]] == [everything] * 2
    assert found["hosts"] == ["a", "b"]
    few = run("plan", "--parallelism", "2,4", "--hosts", "a=2,b=1", "--store", fraud)
    assert (few.exit_code, few.stdout) == (2, "")
    assert "while comparing parallelism 4" in few.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_next_comparison_uses_the_measured_restore_rate(run: Run, store: StateStore) -> None:
    blobs = [{"k": number, "blob": random.randbytes(10**6)} for number in range(66)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "blobs", blobs, key="k", max_parallelism=8)
    compared = ("plan", "--parallelism", "2,", "--store", store.url, "--output", "json")
    assert document(run(*compared))["comparison"]["rate"] is None
    assert run("restore", "--to", "out", "--store", store.url).exit_code == 0
    found = document(run(*compared))
    rate = kept_rate(os.environ, store.checkpoint().manifest.store_id)
    assert rate is not None
    assert rate.size_bytes == store.plan().size_bytes
    assert found["comparison"]["rate"] == rate.bytes_per_second
    assert found["measured"]["at_ms"] == rate.at_ms
    assert "the rate of the restore " in run(*compared[:-2]).stdout


def test_an_error_names_the_option_and_not_the_argument(run: Run, fraud: Path) -> None:
    place = ("--state", "totals-by-card/totals", "--store", fraud)
    done = run("plan", "--parallelism", "9", *place)
    assert done.exit_code == 12
    assert "restore at 8 or less, or pass --max-parallelism 16: a multiple" in done.stderr
    done = run("trend", "--parallelism", "9", "--store", fraud)  # it has no such option
    assert done.stderr.splitlines()[0].endswith("restore at 8 or less")


@pytest.mark.slow
def test_a_small_restore_supplies_no_rate(run: Run, fraud: Path) -> None:
    compared = ("plan", "--parallelism", "2,", "--store", fraud)
    store_id = StateStore.open(str(fraud)).checkpoint().manifest.store_id
    assert run("restore", "--to", "first", "--store", fraud).exit_code == 0
    assert not rates_file(os.environ).exists()
    text = "unknown, because no restore of at least 64.0 MB was recorded on this machine; set"
    assert text in run(*compared).stdout
    keep_rate(os.environ, store_id, Rate(LEAST_BYTES, 2.0, 3))
    assert run("restore", "--to", "second", "--store", fraud).exit_code == 0
    assert kept_rate(os.environ, store_id) == Rate(LEAST_BYTES, 2.0, 3)
    known = {store_id: {"size_bytes": 4_000, "seconds": 0.003, "at_ms": 1}}
    rates_file(os.environ).write_text(json.dumps(known))  # as an earlier release wrote it
    assert kept_rate(os.environ, store_id) is None


def test_a_plan_and_a_failed_restore_record_no_rate(run: Run, fraud: Path) -> None:
    run("plan", "--store", fraud)
    Path("full").mkdir()
    Path("full", "file").touch()
    assert run("restore", "--to", "full", "--store", fraud).exit_code == 2
    assert not rates_file(os.environ).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"s": 1}', '{"s": {"size_bytes": 0}}'])
def test_a_damaged_rates_file_is_ignored(tmp_path: Path, text: str) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    file = rates_file(environment)
    file.parent.mkdir()
    file.write_text(text)
    assert kept_rate(environment, "s") is None
    keep_rate(environment, "s", Rate(LEAST_BYTES, 2.0, 3))
    assert kept_rate(environment, "s") == Rate(LEAST_BYTES, 2.0, 3)
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_rates_of_the_most_recent_stores_are_kept(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for number in range(MOST_STORES + 5):
        keep_rate(environment, f"s{number}", Rate(LEAST_BYTES + number, 1.0, number))
    assert kept_rate(environment, "s4") is None
    assert kept_rate(environment, "s5") == Rate(LEAST_BYTES + 5, 1.0, 5)
    assert len(json.loads(rates_file(environment).read_text())) == MOST_STORES


def test_a_missing_cache_folder_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    keep_rate(environment, "s", Rate(LEAST_BYTES, 1.0, 1))
    assert kept_rate(environment, "s") is None


def test_a_user_without_a_home_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    keep_rate({}, "s", Rate(LEAST_BYTES, 1.0, 1))
    assert kept_rate({}, "s") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "2"], "no such option '--to'"),
        (["--parallelism", "2,x"], "invalid value for '--parallelism'"),
        (["--parallelism", ","], "pass the parallelisms to compare"),
        (["--parallelism", "2,auto"], "invalid value for '--parallelism'"),
        (
            ["--parallelism", "2,4", "--max-parallelism", "256"],
            "remove --max-parallelism: a comparison of parallelisms takes none",
        ),
        (["--parallelism", "2,4", "--graph", "x.toml"], "remove --graph: a comparison"),
        (["--input", "x", "--parallelism", "4"], "--parallelism of a batch job is the SIZE"),
        (["--input", "x", "--bounds", "4"], "invalid value for '--bounds': '4' must have the form"),
        (["--hosts", "a=9", "--balance", "rows"], "--hosts requires all stored key groups"),
        (["--balance", "files"], "invalid value for '--balance'"),
    ],
)
def test_conflicting_options(run: Run, fraud: Path, arguments: list[str], message: str) -> None:
    done = run("plan", *arguments, "--store", fraud)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")


def test_wrong_settings_are_named(run: Run, fraud: Path) -> None:
    for name, value, message in (
        ("RESTORE_RATE", "fast", "STATESTORE_RESTORE_RATE: restore_rate: 'fast' is not a rate"),
        ("PRICES", "nowhere.toml", "the price file nowhere.toml does not exist"),
    ):
        done = run(
            "plan", "--parallelism", "2,", "--store", fraud, env={f"STATESTORE_{name}": value}
        )
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize("text", ["per_gb = 1\n", "per_gb_read = -1\n", "per_gb_read = \n"])
def test_invalid_prices_name_the_file(run: Run, fraud: Path, text: str) -> None:
    Path("p.toml").write_text(text)
    done = run("plan", "--parallelism", "2,", "--store", fraud, env={"STATESTORE_PRICES": "p.toml"})
    assert (done.exit_code, done.stdout) == (2, "")
    assert "p.toml" in done.stderr


def test_skew_as_text_and_json(run: Run, fraud: Path) -> None:
    given = (
        "show",
        "--skew",
        "bytes",
        "--state",
        "totals-by-user",
        "--keys",
        "3",
        "--store",
        fraud,
    )
    done = run(*given)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "operator totals-by-user (totals, per_country)" in done.stdout
    assert "state per_country: the keys with the most rows in 8 key groups" in done.stdout
    (operator,) = document(run(*given, "--output", "json"))["report"]["operators"]
    report = StateStore.open(str(fraud)).inspect.skew("totals-by-user", keys=3).operators[0]
    assert operator["key_groups"] == 16
    assert [one["key_group"] for one in operator["skewed"]] == [
        one.key_group for one in report.skewed
    ]
    (hot,) = operator["hot"]
    assert (hot["state"], hot["rows"], len(hot["keys"])) == ("per_country", 200, 3)
    assert set(hot["keys"][0]) == {"key", "key_group", "rows"}
    none = run("show", "--skew", "bytes", "--state", "orders-source", "--store", fraud)
    assert (none.exit_code, none.stdout) == (10, "")
