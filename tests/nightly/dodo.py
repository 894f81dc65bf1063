"""The tasks of ``make nightly``, which doit runs: one for each shard.

A shard that passed with this tree is not run again. The shard that ran least recently goes first.
After ``HOURS`` hours no shard is started. A stopped run continues where it was stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any
from xml.etree import ElementTree as ET

from tests.nightly import results
from tests.nightly.results import FOLDER, Result
from tests.nightly.shards import EMPTY_FOLDER, MINUTES, SEED, SHARDS, Shard

DOIT_CONFIG = {
    "default_tasks": ["shard"],
    "dep_file": str(FOLDER / "doit.json"),
    "backend": "json",
    "continue": True,
    "verbosity": 2,
    "par_type": "thread",
}
DEADLINE = time.monotonic() + 3600 * float(os.environ.get("HOURS") or 8)
NEVER = datetime.min.replace(tzinfo=UTC)
SHORTEST_LISTED_SECONDS = 0.5
SECONDS_TO_STOP = 30
ONE_MAKE = Lock()
"""Two shards may need the same target."""

# Without this, a terminated run would leave the processes of its shard. A shell starts programs in
# the background with interrupts ignored, which the programs of the shards would inherit.
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.default_int_handler)


def task_shard() -> Iterator[Mapping[str, Any]]:
    """Yield the shards that never ran, then the others by their last run."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    tree, last = results.tree_hash(), results.newest(results.read())
    started = {name: result.started for name, result in last.items()}
    passed = {
        name for name, result in last.items() if result.tree == tree and result.result == "passed"
    }
    for shard in sorted(SHARDS, key=lambda shard: started.get(shard.name, NEVER)):
        yield {
            "name": shard.name,
            "actions": [(run_shard, [shard, tree])],
            "uptodate": [shard.name in passed],
        }


def run_shard(shard: Shard, tree: str) -> bool:
    """Run a shard and record its result; return False if it failed."""
    if time.monotonic() > DEADLINE:
        print("not started: the hours are over")
        return True
    started, begin = results.now(), time.monotonic()
    seed = int(started.strftime("%Y%m%d"))
    log = FOLDER / f"{shard.name.replace(' ', '-').replace(':', '')}.log"
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    folder = log.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    reason = missing(shard)
    outcome = "not run" if reason else "passed"
    if not reason:
        words = {SEED: str(seed), EMPTY_FOLDER: str(folder)}
        command = [words.get(word, word) for word in shard.command]
        if "pytest" in command:
            command += ["--junitxml", str(report)]
        reason = run_command(command, log)
        outcome = "failed" if reason else "passed"
    seconds = round(time.monotonic() - begin, 1)
    times = slow_tests(report.read_text()) if report.exists() else {}
    results.append(
        Result(shard.name, tree, outcome, started, seconds, seed, reason, times)  # type: ignore[arg-type]
    )
    print(f"{shard.name} {outcome} after {seconds:.0f} s{': ' if reason else ''}{reason}")
    return outcome != "failed"


def missing(shard: Shard) -> str:
    """Make the targets that a shard needs; return what is missing, or nothing."""
    programs = [need for need in shard.needs if "/" not in need]
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return f"this machine has no {' and no '.join(absent)}"
    files = [need for need in shard.needs if need.startswith(str(FOLDER))]
    if lacking := [file for file in files if not Path(file).exists()]:
        return f"no shard has written {lacking[0]} yet"
    targets = [need for need in shard.needs if "/" in need and need not in files]
    with ONE_MAKE:
        done = subprocess.run(
            ["make", "--no-print-directory", ".venv/.ready", *targets],
            capture_output=True,
            text=True,
        )
    return last_line(done.stderr) if done.returncode else ""


def run_command(command: list[str], log: Path) -> str:
    """Run a command with its output in a file; return why it failed, or nothing."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(60 * MINUTES)
        except subprocess.TimeoutExpired:
            stop(child)
            return f"took longer than {MINUTES} minutes; see {log}"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    return f"exit {code}: {last_line(log.read_text(errors='replace'))}; see {log}" if code else ""


def stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupt a command, so that pytest still writes the seconds of the tests that ran."""
    child.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        child.wait(SECONDS_TO_STOP)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def slow_tests(xml: str) -> dict[str, float]:
    """Return the seconds of tests that took half a second or longer, from a report of pytest."""
    times = {
        nodeid(case.get("classname", ""), case.get("name", "")): round(
            float(case.get("time", 0)), 1
        )
        for case in ET.fromstring(xml).iter("testcase")
    }
    return {test: seconds for test, seconds in times.items() if seconds >= SHORTEST_LISTED_SECONDS}


def nodeid(classname: str, name: str) -> str:
    """Return the id of a test, whose module and classes a report of pytest joins by dots."""
    *folders, rest = re.split(r"\.(?=test_|[A-Z])", classname)
    modules = [part for part in (*folders, rest) if not part[:1].isupper()]
    classes = [part for part in (*folders, rest) if part[:1].isupper()]
    return "::".join((f"{'/'.join(modules).replace('.', '/')}.py", *classes, name))
