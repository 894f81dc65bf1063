"""The documentation site is built without a warning, says what the code says, and loads nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import statestore
from statestore import errors
from statestore.cli.main import cli
from statestore.settings import Settings
from tests.syntax import ROOT

pytestmark = pytest.mark.slow

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


def page(site: Path, name: str) -> str:
    text = re.sub(r"<[^>]+>", "", (site / f"{name}.html").read_text(encoding="utf-8"))
    return unescape(text)


def test_every_page_is_there(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert [path for path in written if not (site / path.with_suffix(".html")).exists()] == []
    assert "A full snapshot through Spark" in page(site, "benchmarks").replace("a full", "A full")


def test_commands_have_their_own_help(site: Path) -> None:
    shown = page(site, "reference/commands")
    for verbs in cli.sections.values():
        for name, verb in verbs.items():
            assert f"Usage: statestore {name} " in shown
            assert " ".join(verb.does.split()) in " ".join(shown.split())
    assert "Usage: statestore flink repack " in shown


def test_public_names_are_there(site: Path) -> None:
    html = (site / "reference/python.html").read_text(encoding="utf-8")
    names = [name for name in statestore.__all__ if name not in ("__version__", "errors")]
    assert [name for name in names if f'id="statestore.{name}"' not in html] == []
    for inherited in ("statestore.StateStore.snapshot", "statestore.CheckpointWriter.write_keyed"):
        assert f'id="{inherited}"' in html


def test_docstrings_are_without_the_roles_of_sphinx(site: Path) -> None:
    role = re.compile(r":(?:class|func|meth|attr|mod|data):")
    for name in ("python", "streaming", "engines", "jobs", "errors"):
        assert role.findall(page(site, f"reference/{name}")) == []


def test_errors_and_settings_are_there(site: Path) -> None:
    shown = page(site, "reference/errors")
    assert [name for name in errors.__all__ if name not in shown] == []
    told = page(site, "reference/settings")
    assert [name for name in Settings.__dataclass_fields__ if f"{name} = " not in told] == []


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
