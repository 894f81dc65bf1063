"""The tests that cover a change, by a recording of coverage with contexts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from coverage import CoverageData

from tests.mutants.changes import Change, function_lines
from tests.support.durations import SECONDS_OF_AN_UNMEASURED_TEST, recorded_durations

__all__ = ["Recording"]


class Recording:
    """Which tests ran which line.

    Args:
        path: the data file of ``coverage``, recorded with one context for each test, as
            ``pytest --cov --cov-context=test`` does, in the tree that is changed.
        sources: the modules by their path from the root of the project.

    Raises:
        FileNotFoundError: If there is no recording.
    """

    def __init__(self, path: Path, sources: Mapping[str, str]) -> None:
        if not path.exists():
            raise FileNotFoundError(f"no recording {path}; record one with pytest --cov-context")
        self._data: Any = CoverageData(str(path))
        self._data.read()
        self._sources = sources
        self._durations = recorded_durations()
        self._lines = lru_cache(maxsize=8)(self._read)

    def tests(self, change: Change) -> list[str]:
        """Return the tests that cover a change, in the order in which to try them.

        First come the tests of the file that mirrors the module. Of the others, tests that run
        different lines of the module come first, because they try different cases. Of those that
        run the same lines, the quickest comes first, and among all of them the tests of the same
        folder.
        """
        uses = () if change.name is None else self._uses(change.name)
        found = {test for file, lines in uses for test in self._of(file, lines)}
        found = found or self._of(change.file, change.lines)
        runs: defaultdict[str, list[int]] = defaultdict(list)
        for line, tests in self._lines(change.file).items():
            for test in tests & found:
                runs[test].append(line)
        path = PurePath(change.file)
        places = (f"test_{path.stem}", f"tests/{path.parent.name}/", "")
        alike: Counter[tuple[int, ...]] = Counter()
        order: dict[str, tuple[bool, int, int, float]] = {}
        for test in sorted(found, key=lambda test: (self.seconds(test), test)):
            lines = tuple(sorted(runs[test]))
            place = next(number for number, place in enumerate(places) if place in test)
            order[test] = place > 0, alike[lines], place, self.seconds(test)
            alike[lines] += 1
        return sorted(order, key=order.__getitem__)

    def seconds(self, test: str) -> float:
        """Return the recorded or assumed seconds of a test."""
        return self._durations.get(test, SECONDS_OF_AN_UNMEASURED_TEST)

    def _of(self, file: str, lines: tuple[range, ...]) -> set[str]:
        by_line = self._lines(file)
        return {test for one in lines for line in one for test in by_line.get(line, ())}

    def _uses(self, name: str) -> Iterator[tuple[str, tuple[range, ...]]]:
        """Yield the lines of functions that use a constant, by module."""
        word = re.compile(rf"\b{name}\b")
        for file, text in self._sources.items():
            if word.search(text) is not None:
                lines = text.splitlines()
                inside = {line for one in function_lines(text) for line in one}
                uses = [line for line in inside if word.search(lines[line - 1])]
                yield file, tuple(range(line, line + 1) for line in uses)

    def _read(self, file: str) -> dict[int, set[str]]:
        """Return the tests by line. A context is a test and its phase: ``…::test_a|run``."""
        return {
            line: {context.rpartition("|")[0] for context in contexts if context}
            for line, contexts in self._data.contexts_by_lineno(file).items()
        }
