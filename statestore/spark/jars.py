"""The download of jars by Spark's own resolver: its repository, its cache, and its errors.

By default the resolver also searches ``~/.m2``. Maven may have left the description of a package
there without its jar; the resolver then fails although the repository has both. It also stores jars
in ``~/.ivy2*``, which it shares with all other Spark installations of the user. The packages of
this project therefore come only from the repository, and are stored in a folder of this Python
environment.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

__all__ = ["IVY", "IVY_SETTINGS", "resolver_problem", "resolver_settings"]

IVY, IVY_SETTINGS = "spark.jars.ivy", "spark.jars.ivySettings"
# Spark's own environment variable for a mirror, and its default.
MIRROR, CENTRAL = "DEFAULT_ARTIFACT_REPOSITORY", "https://repo1.maven.org/maven2/"
# The resolver's messages about a jar that it could not get.
_NOT_RESOLVED = re.compile(r"RuntimeException: \[((?:unresolved dependency|download failed).*)\]")
_NO_ANSWER = re.compile(r"^\s*Server access error at url (.+)$", re.MULTILINE)
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="true" root={root}/>
  </resolvers>
</ivysettings>
"""


def resolver_settings(folder: Path | None = None) -> dict[str, str]:
    """Return the settings with which Spark resolves packages only from the repository.

    Args:
        folder: The cache of jars; by default a folder of this Python environment, or of the user's
            cache if the environment is read-only.

    Returns:
        Settings of Spark. The settings file that one of them names is written here.
    """
    folder = folder or _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    text = _SETTINGS.format(root=quoteattr(os.environ.get(MIRROR) or CENTRAL))
    file = folder / "ivysettings.xml"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        # Replaced atomically: another process may be reading it.
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    # As a URL: Spark parses a path as a URL, and one with a space or '%' would be invalid.
    return {IVY: str(folder), IVY_SETTINGS: file.as_uri()}


def resolver_problem(text: str) -> str | None:
    """Return the resolver's reason why it did not get a jar.

    Args:
        text: The complete output of Spark.

    Returns:
        The reason; None if something else went wrong.
    """
    problem = _NOT_RESOLVED.search(text)
    if problem is None:
        return None
    no_answer = _NO_ANSWER.search(text)
    return problem[1] if no_answer is None else f"{problem[1]}, no answer from {no_answer[1]}"


def _cache_folder() -> Path:
    own = Path(sys.prefix) / "share" / "statestore" / "ivy"
    first = next(place for place in (own, *own.parents) if place.exists())
    if os.access(first, os.W_OK):
        return own
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statestore" / "ivy"
