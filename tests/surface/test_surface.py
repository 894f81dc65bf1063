"""A public name changes only with a line in CHANGELOG.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore
from tests.surface.record import Surface, surface
from tests.syntax import ROOT
from tests.versions.releases import RELEASES

HERE = Path(__file__).parent
CODE = re.compile(r"`([^`]+)`")
RENAMED = re.compile(r"`([^`]+)` is now `([^`]+)`")
HEADING = re.compile(r"^## (\S+)$", re.MULTILINE)


def sections() -> dict[str, list[str]]:
    """Return the lines of CHANGELOG.md, each with its continuation, by version."""
    _, *parts = HEADING.split((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    return {
        version: [line for line in text.splitlines() if line.startswith("* ")]
        for version, text in zip(parts[::2], parts[1::2], strict=True)
    }


def with_new_names(before: Surface, lines: list[str]) -> Surface:
    """Rename the packages and items of which a line says that one `is now` another."""
    new_names: dict[str, str] = dict(found for line in lines for found in RENAMED.findall(line))

    def new_name(item: str) -> str:
        prefixes = [old for old in new_names if item == old or item.startswith(f"{old}.")]
        old = max(prefixes, key=len, default="")
        return new_names.get(old, "") + item.removeprefix(old)

    return {new_name(item): parts for item, parts in before.items()}


def missing_lines(before: Surface, after: Surface, lines: list[str]) -> Iterator[str]:
    """Yield each difference that no line names: the item, and of a changed item each part."""
    named = [set(CODE.findall(line)) for line in lines]
    for item in sorted(before.keys() | after.keys()):
        old, new = before.get(item), after.get(item)
        if old is None or new is None:
            if not any(is_named(item, codes) for codes in named):
                yield f"{item} was {'added' if old is None else 'removed'}"
            continue
        for part in sorted(old.keys() | new.keys()):
            if old.get(part) == new.get(part) or any(
                item in codes and is_named(part, codes) for codes in named
            ):
                continue
            yield f"{item}: {part} was {old.get(part)!r} and is {new.get(part)!r}"


def is_named(name: str, codes: set[str]) -> bool:
    """Return whether a line names an item or part: itself, or with ``.*`` all that is below it."""
    return name in codes or any(
        code.endswith(".*") and name.startswith(code.removesuffix("*")) for code in codes
    )


def test_each_change_since_the_last_release_has_a_line() -> None:
    last = RELEASES[-1].version
    recorded = json.loads((HERE / f"{last}.json").read_text(encoding="utf-8"))
    versions = [*sections()]
    newer = versions[: versions.index(last)]
    lines = [line for version in newer for line in sections()[version]]
    missing = [*missing_lines(with_new_names(recorded, lines), surface(), lines)]
    assert missing == [], "CHANGELOG.md must name each of these in one line, in `code`"


def test_the_changelog_begins_with_this_version_and_has_every_release() -> None:
    versions = [*sections()]
    assert versions[0] == statestore.__version__
    assert set(versions) >= {release.version for release in RELEASES}
    assert all(sections().values())


def test_every_release_has_a_record() -> None:
    recorded = {path.stem for path in HERE.glob("*.json")}
    assert recorded == {release.version for release in RELEASES}


BEFORE = {"f": {"a": "int", "return": "str"}, "g": {}}


@pytest.mark.parametrize(
    ("after", "line", "expected"),
    [
        (BEFORE, "", []),
        (BEFORE | {"h": {}}, "", ["h was added"]),
        (BEFORE | {"h": {}}, "* `h` is new.", []),
        (BEFORE | {"h": {}}, "* h is new.", ["h was added"]),
        (BEFORE | {"h.a": {}, "h.b": {}}, "* `h.*` is new.", []),
        (BEFORE | {"h": {}, "hh.a": {}}, "* `h.*` is new.", ["h was added", "hh.a was added"]),
        ({"f": BEFORE["f"]}, "* `f` changed.", ["g was removed"]),
        ({"f": BEFORE["f"]}, "* `g` is gone.", []),
        (BEFORE | {"f": {"a": "str", "return": "str"}}, "* `f` takes more.", None),
        (BEFORE | {"f": {"a": "str", "return": "str"}}, "* `a` of `g` changed.", None),
        (BEFORE | {"f": {"a": "str", "return": "str"}}, "* `f`: `a` can be text.", []),
        (BEFORE | {"f": {"return": "str"}}, "* `f` has no `b`.", ["f: a was 'int' and is None"]),
    ],
)
def test_a_difference_without_a_line_is_found(
    after: Surface, line: str, expected: list[str] | None
) -> None:
    """A changed part needs a line with its item and its own name."""
    if expected is None:
        expected = ["f: a was 'int' and is 'str'"]
    assert [*missing_lines(BEFORE, after, [line])] == expected


def test_a_renamed_package_renames_its_items() -> None:
    """The longest name counts, and a name that only begins alike is another one."""
    lines = ["* `a.b` is now `c`, except `a.b.x` is now `d.x`.", "* `a.b` changed."]
    names = ("a.b", "a.b.f", "a.b.x", "a.b.x.y", "a.bc", "z")
    before = {name: {"p": "int"} for name in names}
    assert [*with_new_names(before, lines)] == ["c", "c.f", "d.x", "d.x.y", "a.bc", "z"]


def test_a_surface_has_items_of_every_kind() -> None:
    found = surface()
    assert found["StateStore.open"]["parallel_streams"].endswith("= 16")
    assert found["StoreMaintenance.forget"]["return"] == "ForgottenSubject"
    assert found["statestore get"]["--key"] == "--key text required"
    assert found["JSON of statestore list"]["checkpoints.checkpoint_id"] == "integer"
    assert found["setting parallel_streams"]["variable"] == "STATESTORE_PARALLEL_STREAMS"
    assert found["FormatVersionError"]["exit_code"] == "14"
    assert found["format statestore-checkpoint"] == {"format_version": "3"}
    assert found["statestore.jobgraph.JobGraph"]
