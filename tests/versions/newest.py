"""Print each installed package whose version differs from ``requirements.lock``.

``make test-newest`` runs it, so that a failure of its tests can be traced to a package.
"""

from __future__ import annotations

import re
from importlib import metadata

from tests.syntax import ROOT

__all__ = ["differences", "locked_versions"]


def locked_versions(text: str) -> dict[str, str]:
    """Return the versions in the text of a lock file, by the normalized name of the package."""
    found = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    return {_normalized(name): version for name, version in found}


def differences(installed: dict[str, str], locked: dict[str, str]) -> list[str]:
    """Return a line for each installed package that is locked at another version or not at all."""
    return [
        f"{name} {version}, locked: {locked.get(name, 'not')}"
        for name, version in sorted(installed.items())
        if locked.get(name) != version
    ]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Compare this environment with the lock file of the tree."""
    installed = {
        _normalized(one.name): one.version
        for one in metadata.distributions()
        if one.name not in ("pip", "setuptools", "statestore")
    }
    lines = differences(installed, locked_versions((ROOT / "requirements.lock").read_text()))
    print(*(lines or ["all packages are as locked"]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
