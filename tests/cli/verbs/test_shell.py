"""The shell of ``statestore query``, in a real terminal and with statements from a pipe."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore.cli.main import cli

Run = Callable[..., Result]

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


class Terminal:
    """A process with a terminal of 100 columns."""

    def __init__(self, arguments: list[str], home: Path) -> None:
        self._master, slave = pty.openpty()
        self.resize(100)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
        } | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "statestore", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.unread = ""

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Read until a text appears after everything that was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.unread:
            assert time.monotonic() < end, f"{text!r} is not in {self.unread!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                self.unread += os.read(self._master, 65536).decode(errors="replace")
        self.unread = self.unread.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._master, (40, columns))

    def close(self) -> int:
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            os.close(self._master)


@pytest.fixture
def terminal(fraud: Path, tmp_path: Path) -> Iterator[Callable[[], Terminal]]:
    opened: list[Terminal] = []

    def open_one() -> Terminal:
        opened.append(Terminal(["query", "--store", str(fraud)], tmp_path))
        opened[-1].wait_for("checkpoint 2>")
        return opened[-1]

    yield open_one
    for each in opened:
        each.process.kill()
        each.process.wait()


def test_the_shell_answers_completes_and_remembers(terminal: Callable[[], Terminal]) -> None:
    shell = terminal()
    shell.type("SELECT user_id, n\r")
    shell.type("FROM per_country WHERE n = 7;\r")
    shell.wait_for("u7")
    shell.type("SELECT nothing FROM per_country;\r")
    shell.wait_for("error: DuckDB cannot run the query")
    shell.wait_for("^")
    shell.type(".checkpoint 1\r")
    shell.wait_for("checkpoint 1>")
    shell.type(".unknown\r")
    shell.wait_for(".help lists them")
    shell.type('SELECT max(n) AS largest FROM "per_c\t')
    shell.wait_for('"per_country"')
    shell.type(";\r")
    shell.wait_for("largest")
    shell.type(".quit\r")
    assert shell.close() == 0
    again = terminal()
    again.type("\x1b[A\x1b[A")  # twice up: the command, then the statement
    again.wait_for("largest")
    again.type("\x03")
    again.type("\x04")
    assert again.close() == 0


@pytest.mark.long
def test_rows_fit_a_terminal_that_becomes_narrower(terminal: Callable[[], Terminal]) -> None:
    shell = terminal()
    statement = "SELECT repeat('ab ', 25) AS wide, 'cd' || 'ef' AS narrow;\r"
    shell.type(statement)
    shell.wait_for("ab ab   cdef")
    shell.resize(60)
    shell.type(statement)
    shell.wait_for("row 1")
    shell.wait_for("cdef")
    shell.type(".quit\r")
    assert shell.close() == 0


def test_statements_come_from_a_pipe(fraud: Path) -> None:
    cut = CliRunner().invoke(
        cli, ["query", "--store", str(fraud)], input="SELECT * FROM range(1001);\n"
    )
    hint = "only the first 1,000 rows are shown; 'statestore query --limit 0' shows all"
    assert cut.stdout.splitlines()[1000:] == ["999", hint]
    lines = "SELECT count(*) AS c\n  FROM per_country;\n\n.tables\nSHOW TABLES"
    done = CliRunner().invoke(cli, ["query", "--store", str(fraud)], input=lines)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["c", "200"]
    assert done.stdout.count("totals-by-shop") >= 2
    failed = CliRunner().invoke(
        cli, ["query", "--store", str(fraud)], input="SELECT 1 AS a;\nSELECT b;\nSELECT 3;\n"
    )
    assert failed.exit_code == 2
    assert failed.stdout.splitlines() == ["a", "1"]
