"""Every test that ``make test`` leaves out belongs to a shard of the nightly."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.nightly import results
from tests.nightly.dodo import slow_tests
from tests.nightly.groups import GROUPS, LEFT_OUT_TESTS, group_of
from tests.nightly.page import page, problems
from tests.nightly.results import Result
from tests.nightly.shards import SHARDS

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def result(shard: str, outcome: str = "passed", days: float = 0, **others: object) -> Result:
    values = {"tree": "t", "seconds": 60.0, "seed": 1} | others
    values |= {"shard": shard, "result": outcome, "started": NOW - timedelta(days=days)}
    return Result(**values)  # type: ignore[arg-type]


def test_each_test_that_make_test_leaves_out_belongs_to_a_group(
    request: pytest.FixtureRequest,
) -> None:
    left_out = request.config.stash[LEFT_OUT_TESTS]
    assert [test for test, group in left_out.items() if group not in GROUPS] == []


@pytest.mark.parametrize(
    ("file", "marks", "group"),
    [
        ("tests/keys/test_hashing.py", {"slow"}, None),
        ("tests/keys/test_hashing.py", {"examples"}, "core"),
        ("tests/test_docs.py", {"long"}, "core"),
        ("tests/interop/tables/test_table_formats.py", {"long"}, "interop"),
        ("tests/interop/spark/test_rows.py", {"long", "spark"}, "spark_checkpoints"),
        ("tests/interop/flink/test_real_drawn.py", {"flink"}, "real Flink: drawn jobs"),
        ("tests/interop/flink/test_sql_keys.py", {"flink"}, "real Flink: other"),
        ("tests/services/test_s3_zoo.py", {"long", "ceph"}, "ceph"),
        ("tests/versions/test_matrix.py", {"versions", "long"}, "releases"),
    ],
)
def test_the_group_follows_from_the_marks_and_the_folder(
    file: str, marks: set[str], group: str | None
) -> None:
    assert group_of(file, marks) == group


def test_each_group_has_its_shards_with_names_of_their_own() -> None:
    names = Counter(shard.name for shard in SHARDS)
    assert [name for name, count in names.items() if count > 1] == []
    groups = Counter(
        shard.command[shard.command.index("--nightly") + 1]
        for shard in SHARDS
        if "--nightly" in shard.command
    )
    assert groups == {group: count for group, (count, _) in GROUPS.items()}


def test_results_are_lines_that_can_be_continued(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    assert results.read(file) == []
    runs = [
        result("a", days=2, times={"tests/a.py::test": 2.5}),
        result("b", "failed", reason="exit 1", times={"tests/a.py::test": 1.5}),
        result("a", "not run", reason="Go is missing"),
    ]
    for run in runs:
        results.append(run, file)
    assert results.read(file) == runs
    assert results.seconds_of_tests(runs) == {"tests/a.py::test": 1.5}
    assert results.newest(runs) == {"a": runs[2], "b": runs[1]}


def test_a_shard_is_a_problem_if_it_failed_or_is_older_than_seven_days() -> None:
    last = {
        "good": result("good", days=6.9),
        "old": result("old", days=7.1),
        "bad": result("bad", "failed", reason="exit 1: no | more"),
        "missing": result("missing", "not run", reason="Go is missing"),
    }
    names = ["good", "old", "bad", "missing", "new"]
    assert problems(last, names, NOW) == [
        "old last ran 7 days ago",
        "bad failed: exit 1: no | more",
        "new has never run",
    ]
    text = page(last, names, NOW)
    assert "4 of 5 shards ran" in text
    assert "| missing | not run | 1.0 |" in text
    assert "no / more" in text


def test_slow_tests_come_from_the_report_of_pytest() -> None:
    report = """<testsuites><testsuite>
      <testcase classname="tests.b.test_a" name="test_slow[x.Y]" time="61.26"/>
      <testcase classname="tests.b.test_a.TestS3" name="test_slow" time="1.5"/>
      <testcase classname="tests.b.test_a" name="test_quick" time="0.2"/>
    </testsuite></testsuites>"""
    assert slow_tests(report) == {
        "tests/b/test_a.py::test_slow[x.Y]": 61.3,
        "tests/b/test_a.py::TestS3::test_slow": 1.5,
    }
