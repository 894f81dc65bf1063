"""The output of ``plan`` before a restore (balance, another max parallelism, comparisons) and of
``show --skew``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore
from statestore.cli.restore_records import keep_restore, kept_restores, rates_file
from statestore.format.state import TimeToLive
from statestore.restore.compare_plans import Prices, candidates
from statestore.restore.restart_time import MeasuredRestore, fitted_speed

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


def test_rows_that_a_restore_may_leave_out_are_named(run: Run, store: StateStore) -> None:
    """The plan counts stored rows, also those whose TTL has passed."""
    rows = [{"k": number, "v": 0, "at": 1000} for number in range(50)]
    for name, visibility in (
        ("hidden", "never_return_expired"),
        ("shown", "return_expired_if_not_cleaned_up"),
    ):
        with store.snapshot(parallelism=2) as checkpoint:
            ttl = TimeToLive("7d", "at", visibility=visibility)
            checkpoint.write_keyed("u", name, rows, key="k", max_parallelism=8, ttl=ttl)
            checkpoint.carry_rest()
    text = run("plan", "--store", store.url).stdout
    assert "rows of hidden may be expired (TTL 7d after at); a restore leaves them out" in text
    assert "rows of shown" not in text
    assert store.restore().keyed("u", "hidden").to_arrow().num_rows == 0


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
    assert "time: unknown, because no restore of this store was measured" in done.stdout
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


def measured(seconds: float, parallelism: int = 4, **figures: int) -> MeasuredRestore:
    """Return a restore of a subtask of 100 kB with 100 requests, unless the figures differ."""
    known = {"size_bytes": 100_000, "requests": 100} | figures
    return MeasuredRestore(
        at_ms=1_790_000_000_000,
        checkpoint_id=2,
        parallelism=parallelism,
        seconds=seconds,
        **known,
    )


@pytest.mark.slow
def test_the_next_comparison_uses_the_measured_restore(run: Run, fraud: Path) -> None:
    compared = ("plan", "--parallelism", "2,", "--store", fraud)
    store = StateStore.open(str(fraud))
    assert document(run(*compared, "--output", "json"))["comparison"]["speed"] is None
    assert run("restore", "--to", "out", "--store", fraud).exit_code == 0
    found = document(run(*compared, "--output", "json"))
    [restore] = kept_restores(os.environ, store.checkpoint().manifest.store_id)
    slowest = max(restore.seconds for restore in [restore])
    assert (restore.parallelism, restore.checkpoint_id) == (4, 2)
    assert restore.predicted_seconds is None
    subtasks = [(task.size_bytes, task.requests) for task in store.plan().subtasks]
    assert (restore.size_bytes, restore.requests) in subtasks
    speed = fitted_speed([restore])
    assert speed is not None
    assert speed.seconds_of(restore) == pytest.approx(slowest)
    [option] = found["comparison"]["options"]
    assert option["seconds"] == pytest.approx(speed.seconds(store.plan(parallelism=2).subtasks))
    assert found["measured"]["at_ms"] == restore.at_ms
    assert "as 1 restore on this machine took, the last at " in run(*compared).stdout


def test_other_formats_are_not_measured(run: Run, fraud: Path) -> None:
    assert run("restore", "--to", "out", "--format", "jsonl", "--store", fraud).exit_code == 0
    assert not rates_file(os.environ).exists()


def test_a_restart_without_a_measured_restore_is_unknown(run: Run, fraud: Path) -> None:
    found = document(run("plan", "--restart", "--store", fraud, "--output", "json"))
    store = StateStore.open(str(fraud))
    plans = {one: store.plan(parallelism=one) for one in candidates(store.checkpoint().manifest)}
    assert [one["parallelism"] for one in found["options"]] == [*plans]
    for one, plan in zip(found["options"], plans.values(), strict=True):
        largest = max(operator.largest.size_bytes for operator in plan.operators)
        assert (one["largest_bytes"], one["size_bytes"]) == (largest, plan.size_bytes)
        assert (one["seconds"], one["certainty"]) == (None, "unknown")
        assert one["reason"] == "no restore of this store was measured on this machine"
    text = run("plan", "--restart", "--store", fraud).stdout
    assert "unknown at 1, 2, 3, 4, 5, 6, 7, 8: no restore of this store was measured" in text
    assert "the start of the job is not included" in text


def test_a_restart_is_measured_derived_or_guessed(run: Run, fraud: Path) -> None:
    """Three restores like it, five others within the same range, or fewer and others."""
    store = StateStore.open(str(fraud))
    store_id = store.checkpoint().manifest.store_id
    restart = ("plan", "--restart", "--store", fraud, "--output", "json")
    costs = {
        one: max(store.plan(parallelism=one).subtasks, key=lambda task: task.requests)
        for one in (1, 2, 3, 4, 8)
    }

    def take(parallelism: int, factor: float = 1.0) -> None:
        task = costs[parallelism]
        figures = {"size_bytes": task.size_bytes, "requests": task.requests}
        one = measured(factor * task.requests / 100, parallelism, **figures)
        keep_restore(os.environ, store_id, one)

    take(4)
    options = {one["parallelism"]: one for one in document(run(*restart))["options"]}
    assert {one["certainty"] for one in options.values()} == {"guessed"}
    assert "only 1 restore of this store measured" in options[4]["reason"]
    for parallelism, factor in ((4, 1.1), (4, 0.9), (2, 1), (1, 1), (3, 1)):
        take(parallelism, factor)
    options = {one["parallelism"]: one for one in document(run(*restart))["options"]}
    assert (options[4]["certainty"], options[2]["certainty"]) == ("measured", "derived")
    for parallelism in (2, 4):
        one = options[parallelism]
        assert one["seconds"] == pytest.approx(costs[parallelism].requests / 100, rel=0.1)
        assert one["low_seconds"] <= one["seconds"] <= one["high_seconds"]
    for factor in (3, 0.3, 2, 0.5):
        take(2, factor)
    options = {one["parallelism"]: one for one in document(run(*restart))["options"]}
    assert (options[2]["certainty"], options[2]["seconds"]) == ("unknown", None)
    assert "times the expected: not within 25%" in options[2]["reason"]
    assert options[2]["high_seconds"] > 2 * options[2]["low_seconds"]


def test_the_setting_is_a_guess_and_prices_need_a_known_time(run: Run, fraud: Path) -> None:
    prices = {"STATESTORE_PRICES": str(PRICES)}
    restart = ("plan", "--restart", "--parallelism", "2,4", "--store", fraud)
    found = document(run(*restart, "--output", "json", env=prices))
    assert [one["money"] for one in found["options"]] == [None, None]
    rate = {"STATESTORE_RESTORE_RATE": "200MB/s"}
    found = document(run(*restart, "--output", "json", env=prices | rate))
    known = StateStore.open(str(fraud)).inspect.compare([2, 4], rate=200_000_000)
    assert [one["seconds"] for one in found["options"]] == [one.seconds for one in known.options]
    assert all(one["money"] > 0 for one in found["options"])
    assert {one["certainty"] for one in found["options"]} == {"guessed"}
    text = run(*restart, env=prices | rate).stdout
    assert "guessed at 2, 4: the rate is the setting restore_rate" in text
    assert "cost USD" in text


def test_a_plan_and_a_failed_restore_record_nothing(run: Run, fraud: Path) -> None:
    run("plan", "--store", fraud)
    Path("full").mkdir()
    Path("full", "file").touch()
    assert run("restore", "--to", "full", "--store", fraud).exit_code == 2
    assert not rates_file(os.environ).exists()


def test_an_error_names_the_option_and_not_the_argument(run: Run, fraud: Path) -> None:
    place = ("--state", "totals-by-card/totals", "--store", fraud)
    done = run("plan", "--parallelism", "9", *place)
    assert done.exit_code == 12
    assert "restore at 8 or less, or pass --max-parallelism 16: a multiple" in done.stderr
    done = run("trend", "--parallelism", "9", "--store", fraud)  # it has no such option
    assert done.stderr.splitlines()[0].endswith("restore at 8 or less")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "2"], "no such option '--to'"),
        (["--parallelism", "2,x"], "invalid value for '--parallelism'"),
        (["--parallelism", ","], "pass the parallelisms to compare"),
        (["--parallelism", "2,auto"], "invalid value for '--parallelism'"),
        (["--restart", "--parallelism", "auto"], "--restart needs numbers"),
        (["--restart", "--graph", "x.toml"], "remove --graph: --restart takes none"),
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
