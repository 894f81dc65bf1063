"""Compute docs/RESCALING.md: ``python -m tests.rescaling.page > docs/RESCALING.md``.

The text is in page.md. Its code blocks are handled by language:

* ``toml`` is saved under the name in its first line.
* ``python`` is run, one block after the other, up to a line that says ``with Spark``.
* ``console`` is passed to the command.

The output of a block is inserted below it. ``{{name}}`` is a function of drawings.py or
more_drawings.py if it has a line for itself; otherwise it is a function of facts.py.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from statestore.cli.main import cli
from statestore.settings import CONFIG_VARIABLE, ENVIRONMENT
from tests.rescaling import drawings, facts, more_drawings
from tests.rescaling.job import Job, pretended_sizes

TEMPLATE = Path(__file__).with_name("page.md")
UNRUN = "# with Spark"
AS_ON_A_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")  # rich reads these variables

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_FACT = re.compile(r"\{\{(\w+)\}\}")
_DRAWING = re.compile(r"^\{\{(\w+)\}\}$", re.MULTILINE)
_HEAD_OR_TAIL = re.compile(r" \| (head|tail) -n (\d+)")


def page(*, sizes_as_they_are: bool = False) -> str:
    """Return the whole document; on request with the real file sizes, for comparison."""
    pretend = contextlib.nullcontext() if sizes_as_they_are else pretended_sizes()
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), pretend:
        return "".join(_written(TEMPLATE.read_text(encoding="utf-8")))


def _written(template: str) -> Iterator[str]:
    names: dict[str, Any] = {}
    at = 0
    for block in _BLOCK.finditer(template):
        yield _prose(template[at : block.start()])
        run, marker, rest = block[2].partition(f"\n{UNRUN}")
        yield f"```{block[1]}\n{run}{_output(block[1], run, names)}{marker}{rest}```\n"
        at = block.end()
    yield _prose(template[at:])


def _prose(text: str) -> str:
    drawn = _DRAWING.sub(lambda found: _fenced(_drawn(found[1])), text)
    return _FACT.sub(lambda found: _fact(found[1]), drawn)


def _drawn(name: str) -> str:
    """Return a drawing, computed from the checkpoint that an earlier block took."""
    module = drawings if hasattr(drawings, name) else more_drawings
    return str(getattr(module, name)(Job.here()))


def _fact(name: str) -> str:
    known = facts.CONSTANTS.get(name)
    return str(getattr(facts, name)(Job.here())) if known is None else known


def _output(language: str, text: str, names: dict[str, Any]) -> str:
    """Return the output of a block, for Python as a comment; a saved file has no output."""
    if language == "toml":
        Path(text.splitlines()[0].removeprefix("# ")).write_text(text, encoding="utf-8")
    elif language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, TEMPLATE.name, "exec"), names)
        return "".join(f"# {line}\n" for line in printed.getvalue().splitlines())
    elif language == "console":
        return "".join(f"{line}\n" for line in command(text.strip().removeprefix("$ ")))
    return ""


def command(line: str) -> list[str]:
    """Return the output of a ``statestore`` command, or the lines that head or tail selects."""
    words = shlex.split(_HEAD_OR_TAIL.sub("", line))
    assert words[0] == "statestore"
    unset = dict.fromkeys((CONFIG_VARIABLE, *ENVIRONMENT.values(), *AS_ON_A_TERMINAL))
    done = CliRunner().invoke(cli, words[1:], env=unset)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    lines = done.stdout.replace(f"{Path.cwd()}/", "./").splitlines()
    for part, number in _HEAD_OR_TAIL.findall(line):
        lines = lines[: int(number)] if part == "head" else lines[-int(number) :]
    return lines


def _fenced(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    sys.stdout.buffer.write(page().encode())
