"""The list of packages that are newer than the lock file."""

from __future__ import annotations

from tests.syntax import ROOT
from tests.versions.newest import differences, locked_versions


def test_the_lock_file_is_read_whole() -> None:
    text = (ROOT / "requirements.lock").read_text()
    locked = locked_versions(text)
    assert len(locked) == text.count("==") > 100
    assert {"pyarrow", "pyyaml", "typing-extensions"} <= set(locked)


def test_each_difference_is_named() -> None:
    locked = locked_versions("Ruff==1.0\n    # via x==2\nzope_interface==2.0\nsame==3\n")
    assert locked == {"ruff": "1.0", "zope-interface": "2.0", "same": "3"}
    installed = {"ruff": "1.1", "zope-interface": "2.0", "new": "4", "same": "3"}
    assert differences(installed, locked) == ["new 4, locked: not", "ruff 1.1, locked: 1.0"]
