"""docs/RESCALING.md is what the code computes, and all of it is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from statestore.restore.byte_sizes import bytes_of
from tests.rescaling import drawings, facts, more_drawings
from tests.rescaling.layout import table
from tests.rescaling.page import TEMPLATE, UNRUN, page

ROOT = Path(__file__).parent.parent
WRITTEN = (ROOT / "docs/RESCALING.md").read_text(encoding="utf-8")
SECTIONS = {
    1: ("Keys", "key_group_of("),
    2: ("Source offsets", ".operator_state("),
    3: ("Operator ids", "statestore plan --graph new.toml"),
    4: ("Chains", "statestore show --job-graph"),
    5: ("Wiring", "partition(df, "),
    6: ("Parallelism by bytes", "statestore plan --parallelism 8MB"),
    7: ("Placement", 'cache=CacheOptions("cache")'),
    8: ("Restart", "[restart-strategy]"),
}


@cache
def computed() -> str:
    return page()


def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## )", WRITTEN, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def numbers(line: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", line)]


def line_of(text: str, start: str) -> str:
    (found,) = (line for line in text.splitlines() if line.startswith(start))
    return found.removeprefix(start)


def test_the_page_is_what_the_code_computes() -> None:
    """All snippets and commands on it are run for that; `make docs` writes it anew."""
    assert computed() == WRITTEN


def test_the_page_says_how_it_is_written() -> None:
    first = WRITTEN.splitlines()[0]
    assert "`make docs`" in first
    assert "python -m tests.rescaling.page" in first
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^docs: .*\n\t.*-m tests\.rescaling\.page > .*RESCALING\.md$", makefile, re.M)


@pytest.mark.parametrize("number", SECTIONS)
def test_every_section_has_a_drawing_and_shows_what_to_call(number: int) -> None:
    title, shown = SECTIONS[number]
    text = section(number)
    assert text.startswith(f"## {number}. {title}")
    assert any(re.search(r"[─█●│·=]", drawing) for drawing in blocks(text, "text"))
    assert any(
        shown in block for kind in ("python", "console", "toml") for block in blocks(text, kind)
    )


def test_every_drawing_and_every_fact_is_on_the_page_and_nothing_is_left_open() -> None:
    used = set(re.findall(r"\{\{(\w+)\}\}", TEMPLATE.read_text(encoding="utf-8")))
    made = {*facts.CONSTANTS}
    for module in (drawings, more_drawings, facts):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        made |= {f.name for f in functions if not f.name.startswith("_") and f.name != "decision"}
    assert used == made
    assert "{{" not in WRITTEN


@pytest.mark.slow
def test_commands_print_what_the_page_shows_but_for_the_sizes_of_files() -> None:
    """The files' real sizes change nothing else, except a parallelism that is chosen by bytes."""
    real = page(sizes_as_they_are=True)
    assert real != WRITTEN
    pairs = list(zip(blocks(real, "console"), blocks(WRITTEN, "console"), strict=True))
    unlike = [shown for actual, shown in pairs if without_sizes(actual) != without_sizes(shown)]
    assert len(pairs) == 4
    assert [shown for shown in unlike if "--parallelism 8MB" not in shown] == []
    for language in ("python", "toml", "text"):
        assert blocks(real, language) == blocks(WRITTEN, language)


def without_sizes(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d[\d.]* (B|kB|MB)\b", "#", text))


@pytest.mark.slow
def test_it_needs_no_jvm_and_says_the_same_in_another_process() -> None:
    program = (
        "import sys; from tests.rescaling.page import page; "
        "text = page(); assert 'pyspark' not in sys.modules; sys.stdout.buffer.write(text.encode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout.decode() == WRITTEN


def test_what_needs_spark_is_python_that_uses_public_names() -> None:
    import statestore

    (block,) = (block for block in blocks(WRITTEN, "python") if UNRUN in block)
    tree = ast.parse(block[block.index(UNRUN) :])
    names = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "statestore"
        for alias in node.names
    ]
    assert names == ["partition"]
    assert set(names) <= set(statestore.__all__)


def test_no_user_and_no_byte_is_lost_in_a_drawing() -> None:
    keys = section(1)
    users = int(re.findall(r"of the (\d+) users", keys)[0])
    assert line_of(keys, "users ").count("█") == users
    assert sum(numbers(row)[3] for row in blocks(keys, "console")[0].splitlines()[2:6]) == users
    by_bytes = section(6)
    megabytes = sum(numbers(line_of(by_bytes, "MB ")))
    for cut in ("even ranges", "cut by bytes"):
        shares = line_of(by_bytes, cut).rpartition("]")[2]
        assert sum(numbers(shares)) == megabytes == users
    local, of, _ = re.findall(r"(\d+)\.0 MB", line_of(section(7), "local: "))
    placed = [re.findall(r"(\d+)\.0 MB|0 B", row)[-1] for row in rows_of_placement()]
    assert sum(int(size or 0) for size in placed) == int(local)
    assert int(of) == megabytes


def test_the_text_and_the_command_ask_for_the_same_bytes_per_task() -> None:
    asked = re.findall(r"--parallelism (\d+MB)|bytes_per_task=([\d_]+)", section(6))
    assert [bytes_of(a or b.replace("_", "")) for a, b in asked] == [facts.PER_TASK] * 2


def rows_of_placement() -> list[str]:
    return [
        row for row in blocks(section(7), "text")[0].splitlines() if re.search(r" host [a-d] ", row)
    ]


def test_every_partition_is_kept_by_one_subtask() -> None:
    rows = [row for row in section(2).splitlines() if row.startswith("new subtask")]
    marks = [row.split()[3:] for row in rows]
    assert len(marks) == 4
    assert [column.count("●") for column in zip(*marks, strict=True)] == [1] * 5


def test_a_table_with_an_empty_cell_is_refused() -> None:
    assert table(["a", "b"], [(1, "·")]) == "a  b\n1  ·"
    with pytest.raises(AssertionError):
        table(["a", "b"], [(1, "")])
    with pytest.raises(AssertionError):
        table(["a", "b"], [(1,)])
