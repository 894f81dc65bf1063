"""The documentation site is built without a warning, says what the code says, and loads nothing."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import re
import subprocess
import sys
from functools import partial
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from docs.python_pages import PYTHON, place_of
from statestore import StateOptions, errors
from statestore.cli.command import common_options
from statestore.cli.main import cli
from statestore.settings import Settings
from tests.support.browser import headless_browser, logged
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
# A build takes longer than what each run looks for: the links, members and docstrings of the pages,
# in tests/test_docs.py and tests/test_house_rules.py.
BUILT = pytest.mark.long

# A script, a style or a font, and not a link that a reader may follow.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|preload)[^>]*href=["']?(https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(https?:)?//|url\(["']?(https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a page or an anchor that a link names and nobody wrote ends its build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless_browser() as driver:
        yield driver


MADE = """
import json, sys
from docs import absent_packages
if "absent" in sys.argv:
    sys.meta_path.insert(0, absent_packages.AbsentPackages(absent_packages.PACKAGES))
from docs.hooks import pages
print(json.dumps(dict(pages())))
"""


def test_pages_are_the_same_without_spark_and_arrow() -> None:
    """``make site`` has an environment without them."""

    def made(*arguments: str) -> dict[str, str]:
        command = [sys.executable, "-c", MADE, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        return found

    pages = made()
    assert len(pages) > 90
    assert made("absent") == pages


def page(site: Path, name: str) -> str:
    text = re.sub(r"<[^>]+>", "", (site / f"{name}.html").read_text(encoding="utf-8"))
    return unescape(text)


@BUILT
def test_every_page_is_there(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert [path for path in written if not (site / path.with_suffix(".html")).exists()] == []
    assert "A full snapshot through Spark" in page(site, "benchmarks").replace("a full", "A full")


@BUILT
def test_each_command_is_on_the_page_of_its_task_with_all_of_its_help(site: Path) -> None:
    """No purpose, option or example is shortened."""
    overview = words(page(site, "reference/commands"))
    root = click.Context(cli, info_name="statestore")
    seen = 0
    for task, verbs in cli.sections.items():
        shown = words(page(site, f"reference/commands/{task.lower().replace(' ', '-')}"))
        for name, verb in verbs.items():
            assert plain(verb.does) in overview
            assert plain(verb.does) in shown
            for path, command in leaves(name, cli, root):
                seen += 1
                assert f"{path} " in shown
                for text in help_texts(command):
                    assert plain(text) in shown, path
    assert seen > 30


def leaves(
    name: str, group: click.Group, parent: click.Context
) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, or the commands in it, with their whole names."""
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for inner in command.list_commands(context):
        yield from leaves(inner, command, context)


def help_texts(command: click.Command) -> Iterator[str]:
    """Yield each text of a command's help, except those of options that every command has."""
    yield command.help or ""
    yield getattr(command, "prints", "")
    yield from getattr(command, "examples", ())
    common = {option.name for option in common_options()}
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in common:
            yield option.opts[0]
            meaning = re.sub(r"\s*\[[^\]]+\]\.?$", "", option.help or "")
            assert meaning, f"{command.name} {option.opts[0]} has no meaning"
            yield meaning


def plain(text: str) -> str:
    """Return a text without spaces and without the quotes around what a reader types."""
    return re.sub(r" \\\n|['\s\x08]", "", text)


def words(text: str) -> str:
    """Return the text of a page as :func:`plain` returns it, with spaces after names."""
    return plain(text) + " " + " ".join(re.findall(r"statestore [a-z -]+ ", text))


@BUILT
def test_no_line_of_a_command_is_cut_off(site: Path, browser: webdriver.Chrome) -> None:
    """Each block is as wide as its longest line, and no table is wider than the page."""
    browser.set_window_size(1400, 1000)
    paths = sorted((site / "reference").glob("commands*/*.html"))
    assert paths
    for path in paths:
        browser.get(path.as_uri())
        assert browser.find_elements(By.CSS_SELECTOR, "pre code")
        wide = """return [...document.querySelectorAll("pre, pre code, .md-typeset__table")]
            .filter(part => part.scrollWidth > part.parentElement.clientWidth)
            .map(part => part.textContent)"""
        assert browser.execute_script(wide) == [], path.name


def documented() -> list[tuple[str, str]]:
    """Return the page and the whole name of each class and function of the reference."""
    found = []
    for name, (_, packages, objects) in PYTHON.items():
        names = [
            place_of(package, n) for package in packages for n in import_module(package).__all__
        ]
        found += [(name, path) for path in [*names, *objects]]
    skipped = ("statestore.__version__", "statestore.errors")
    return [
        (place, path)
        for place, path in found
        if path not in skipped and not path.endswith(".DEFAULT_SECONDS")
    ]


def member(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@BUILT
def test_a_page_of_the_reference_has_at_most_one_class(site: Path) -> None:
    of_class = re.compile(r'class="doc doc-object doc-class"')
    counts = {
        path.relative_to(site / "reference").as_posix(): len(of_class.findall(path.read_text()))
        for path in (site / "reference").rglob("*.html")
    }
    pages = {
        f"{name}/{path.rpartition('.')[2]}.html"
        for name, path in documented()
        if inspect.isclass(member(path))
    }
    assert len(pages) > 90
    assert {path for path, count in counts.items() if count == 1} == pages
    assert max(counts.values()) == 1


@BUILT
def test_signatures_have_the_type_and_default_of_each_parameter(site: Path) -> None:
    """Of all public functions and methods: in the signature, and in the table of parameters."""
    checked = 0
    for name, path in documented():
        value = member(path)
        if inspect.isclass(value):
            html = (site / f"reference/{name}/{path.rpartition('.')[2]}.html").read_text()
            calls = {f"{path}.{attribute}": call for attribute, call in methods(value)}
        else:
            html = (site / f"reference/{name}.html").read_text()
            calls = {path: inspect.signature(value)} if inspect.isfunction(value) else {}
        for anchor, call in calls.items():
            missing = untyped(described(html, anchor), call)
            assert missing == [], anchor
            checked += 1
    assert checked > 200


def methods(value: type[Any]) -> Iterator[tuple[str, inspect.Signature]]:
    """Yield the public methods of a class that this project defines, as a caller calls them.

    The first parameter of a method has any name, as in ``to_pandas = as_pandas``.
    """
    for name in dir(value):
        call = getattr(value, name)
        if name.startswith("_") or not (inspect.isfunction(call) or inspect.ismethod(call)):
            continue
        if inspect.unwrap(call).__module__.startswith("statestore"):
            is_static = isinstance(inspect.getattr_static(value, name), staticmethod)
            bound = call if is_static or inspect.ismethod(call) else partial(call, None)
            yield name, inspect.signature(bound)


def described(html: str, anchor: str) -> str:
    """Return the part of a page that describes one function."""
    _, found, rest = html.partition(f'id="{anchor}" class="doc doc-heading"')
    assert found, anchor
    return rest.partition('class="doc doc-heading"')[0]


SIGNATURE = re.compile(r'<div class="[^"]*doc-signature[^"]*">(.*?)</div>', re.DOTALL)
PARAMETERS = re.compile(r"Parameters:</span>.*?</table>", re.DOTALL)
ROW = re.compile(r'<tr class="doc-section-item">(.*?)</tr>', re.DOTALL)
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)


def untyped(html: str, signature: inspect.Signature) -> list[str]:
    """Return the parameters that lack a type or a default, in the signature or in the table.

    A parameter such as ``**options`` hides the real ones, which its type must list.
    """
    found = SIGNATURE.search(html)
    shown = visible(found[1]) if found else ""
    incomplete = []
    for name, parameter in signature.parameters.items():
        default = "" if parameter.default is parameter.empty else r".*? = \S"
        if parameter.annotation == "Unpack[StateOptions]":
            keys = StateOptions.__annotations__
            incomplete += [key for key in keys if not re.search(rf"\b{key}: \S", shown)]
        elif parameter.kind is parameter.VAR_KEYWORD:
            incomplete.append(f"**{name}")
        elif not re.search(rf"\b{name}: \S{default}", shown):
            incomplete.append(name)
    for table in PARAMETERS.findall(html):
        rows = [[visible(cell) for cell in CELL.findall(row)] for row in ROW.findall(table)]
        assert rows
        incomplete += [str(row) for row in rows if len(row) != 4 or not all(row)]
    return incomplete


def visible(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def test_a_parameter_without_type_or_default_is_found() -> None:
    def call(a: int, b: int = 1) -> None: ...

    def vague(**options: Any) -> None: ...

    shown = '<div class="doc-signature">call(a: int, b: int = 1)</div>'
    signature = inspect.signature(call)
    assert untyped(shown, signature) == []
    assert untyped(shown.replace("a: int", "a"), signature) == ["a"]
    assert untyped(shown.replace(" = 1", ""), signature) == ["b"]
    assert untyped(shown, inspect.signature(vague)) == ["**options"]
    row = '<tr class="doc-section-item"><td>a</td><td></td><td>x</td><td>required</td></tr>'
    assert untyped(f"{shown}Parameters:</span>{row}</table>", signature) == [
        "['a', '', 'x', 'required']"
    ]


RAISED = re.compile(r"Raises:</span>.*?</table>", re.DOTALL)


@BUILT
def test_what_a_call_raises_is_a_list_of_errors(site: Path) -> None:
    """Each name is an error of the library or of Python, and stands for itself."""
    known = {*errors.__all__, *dir(builtins), "StateStoreError"}
    unknown, seen = set(), 0
    for path in (site / "reference").rglob("*.html"):
        for table in RAISED.findall(path.read_text()):
            for row in ROW.findall(table):
                names = re.split(r", | or ", visible(CELL.findall(row)[0]))
                seen += len(names)
                unknown |= {f"{path.stem}: {name}" for name in names if name not in known}
    assert unknown == set()
    assert seen > 150


@BUILT
def test_defaults_are_values_and_not_names_of_the_code(site: Path) -> None:
    html = (site / "reference/python/CheckpointWriter.html").read_text()
    changes = visible(described(html, "statestore.CheckpointWriter.write_changes"))
    assert 'base: int | str = "latest"' in changes
    assert "key: str | Sequence[str] | None" in changes
    assert "The key columns." in changes


GUIDES = {
    "restore": "how/restore.html",
    "compact": "how/incremental.html",
    "expire": "how/keep.html",
    "duckdb": "how/read.html",
    "install": "install.html",
    "kafka": "how/kafka.html",
    "notebook": "how/notebook.html",
    "CheckpointWriter": "reference/python/CheckpointWriter.html",
}


@BUILT
def test_the_search_works_from_a_file_and_finds_a_guide_first(
    site: Path, browser: webdriver.Chrome, subtests: pytest.Subtests
) -> None:
    """A low rank hides no page of the reference: a class is found by its name."""
    browser.set_window_size(1400, 1000)
    browser.get((site / "index.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    script = """const first = document.querySelector("li.md-search-result__item > a");
        return first && first.href.split(/[?#]/)[0]"""
    until: Any = WebDriverWait(browser, 10).until
    for query, guide in GUIDES.items():
        with subtests.test(query):
            field.clear()
            field.send_keys(query)
            address = (site / guide).as_uri()
            until(lambda page, address=address: page.execute_script(script) == address)
    assert logged(browser) == []


@BUILT
def test_docstrings_are_without_the_roles_of_sphinx(site: Path) -> None:
    role = re.compile(r":(?:class|func|meth|attr|mod|data):")
    paths = [*(site / "reference").rglob("*.html")]
    assert paths
    for path in paths:
        assert role.findall(visible(path.read_text())) == [], path.name


@BUILT
def test_errors_and_settings_are_there(site: Path) -> None:
    shown = page(site, "reference/errors")
    assert [name for name in errors.__all__ if name not in shown] == []
    told = page(site, "reference/settings")
    assert [name for name in Settings.__struct_fields__ if f"{name} = " not in told] == []


@BUILT
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = [
        f"{path.relative_to(site)}: {found.group()}"
        for path in [*site.rglob("*.html"), *site.rglob("*.css")]
        if (found := LOADED.search(path.read_text(encoding="utf-8")))
    ]
    assert loading == []


def test_what_loads_from_elsewhere_would_be_found() -> None:
    for text in (
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '@import url("https://fonts.example/css")',
    ):
        assert LOADED.search(text)
    assert not LOADED.search('<a href="https://flink.apache.org">Flink</a>')
