"""What the documents show is run: README's Python, its commands, and the demo's printed output."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.cli.main import cli
from statestore.demo import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of README in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    """Return what README tells the reader to type."""
    return re.findall(r"^\$ (.+)$", "\n".join(blocks("console")), re.MULTILINE)


def test_the_examples_run(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """README's Python runs as it stands, and every statestore command on the store it made."""
    assert spark is not None
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert "checkpoint 1" in capsys.readouterr().out
    typed = [line for line in commands() if line.startswith("statestore ")]
    assert len(typed) > 4
    for line in typed:
        done = CliRunner().invoke(cli, shlex.split(line)[1:], prog_name="statestore")
        assert done.exit_code == 0, f"{line}\n{done.stderr}"
        assert done.stdout or "--to ./restored" in line


def test_the_commands_exist() -> None:
    """Make targets, jobs and settings files that README names are there."""
    makefile = (ROOT / "Makefile").read_text()
    for line in commands():
        match shlex.split(line):
            case ["make", target]:
                assert f"\n{target}:" in makefile
            case ["python", "-m", module, "--conf-file", settings]:
                assert (ROOT / f"{module.replace('.', '/')}.py").exists()
                assert (ROOT / settings).exists()
            case ["statestore", *_]:
                continue
            case other:
                pytest.fail(f"README shows a command that no test runs: {other}")


def test_the_demo_prints_what_readme_shows(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole demo, over all flights: equal to an uninterrupted run, and as README has it."""
    assert spark is not None
    directory = tmp_path / "statestore-demo"
    assert run(directory) == 0
    printed, progress = capfd.readouterr()
    assert printed.rstrip().endswith(f"statestore --store {directory}/store show latest")
    assert "parallelism 7, snapshot, auto: " in progress
    done, total = progress.splitlines()[-1].partition(" ")[0].strip("[]").split("/")
    assert done == total
    assert StateStore.open(str(directory / "store")).checkpoints() == (1, 2, 3)
    (shown,) = (block for block in blocks("text") if "flights" in block)
    assert masked(printed) == masked(shown)


def masked(text: str) -> list[str]:
    """Return the lines without what differs from run to run: seconds, and where the store lies."""
    text = re.sub(r"\d+(\.\d)?(?= s\b| seconds\b|$)", "#", text.strip(), flags=re.MULTILINE)
    text = re.sub(r"\S.*statestore --store \S+", "statestore --store #", text)
    return [re.sub(r" +", " ", line).strip() for line in text.splitlines() if line.strip()]


def test_links_lead_somewhere() -> None:
    """Every relative link in README and docs names a file of the repository."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "bench/README.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert os.path.exists(page.parent / target), f"{page.name}: {target}"  # noqa: PTH110
