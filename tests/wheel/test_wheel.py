"""The contents of the wheel and the sdist; the wheel alone suffices for the core."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.ui.vendor import FOLDER, vendored_files
from tests.wheel.environment import MB, Environment

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("conf", "docs", "jobs", "statestore", "tests")
FILES = (
    *("LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "releases.toml"),
    "requirements.lock",
)


def vendored_licenses() -> list[str]:
    return [
        str((FOLDER / file.name).relative_to(ROOT))
        for file in vendored_files()
        if file.name.endswith(".LICENSE.txt")
    ]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which the demo has run, and other folders have names that begin like ours."""
    tree = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("__pycache__", "golden*", "*.png")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, tree / file)
    for planted in ("statestore-demo/store", "statestore_demo", "build/lib-of-another-tool"):
        (tree / planted).mkdir(parents=True)
        (tree / planted / "planted.json").write_text("{}")
        (tree / planted / "planted.py").touch()
    return tree


def build_wheel(tree: Path, folder: Path) -> Path:
    """Build the wheel as ``pip install .`` does, with the setuptools of this environment."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(tree)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("wheel"))


@pytest.mark.long
def test_two_builds_of_a_commit_make_equal_bytes(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    for file in tree.rglob("*.py"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    first = build_wheel(tree, tmp_path / "1").read_bytes()
    for file in tree.rglob("*.py"):
        os.utime(file)
    assert build_wheel(tree, tmp_path / "2").read_bytes() == first


@pytest.mark.slow
def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "statestore"
    ours = {
        str(file.relative_to(ROOT))
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and "LICENSE" not in file.name
    }
    assert names == ours  # the licenses are beside the metadata


@pytest.mark.slow
def test_the_metadata_are_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        licenses = ["LICENSE", *vendored_licenses()]
        for license_file in licenses:
            assert name.replace("METADATA", f"licenses/{license_file}") in archive.namelist()
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata["Author"] == "statestore contributors"
    assert "rescaling" in metadata["Keywords"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    core = {text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text}
    named = {text.partition(">")[0] for text in core}
    assert named == {
        *("click", "deltalake", "fsspec", "google-crc32c", "msgspec", "numpy", "pyarrow", "rich"),
        "xxhash",
    }


@pytest.mark.long
@pytest.mark.slow
def test_the_sdist_has_docs_jobs_settings_and_tests(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir"]
    subprocess.run([*command, str(tmp_path), str(tree)], check=True, capture_output=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    has = {
        *("README.md", "LICENSE", "Makefile", "requirements.lock", "releases.toml"),
        "statestore/store.py",
        *("docs/index.md", "conf/restore.toml", "jobs/restore.py", "tests/conftest.py"),
        *("tests/wheel/test_wheel.py", "statestore/ui/templates/page.html"),
    }
    assert has <= names
    assert not [name for name in names if "planted" in name or name.endswith(".pyc")]


# In each run, tests/test_extras.py hides the packages of all extras from the core, and .ci/run
# installs the wheel of make dist alone.
@pytest.mark.long
@pytest.mark.services
@pytest.mark.slow
def test_the_wheel_alone_suffices_for_the_core(wheel: Path, tmp_path: Path) -> None:
    environment = Environment.with_wheel(wheel, tmp_path / "environment")
    place = tmp_path / "work"
    place.mkdir()
    environment.try_out(place)
    sizes = environment.sizes()
    # Measured: 385 MB, of which pyarrow has 171, deltalake with its dependencies 147, and numpy 57.
    assert sizes.total < 420 * MB, sizes
    assert sizes.small < 20 * MB, sizes


# The second import is that of transformWithState, in a worker.
VERSION = """
import pyspark
import pyspark.sql.streaming.proto.StateMessage_pb2
print('pyspark', pyspark.__version__)
"""


# In each run, test_the_metadata_are_complete sees that no extra is needed, and .ci/run installs the
# wheel next to the oldest and the newest Spark.
@pytest.mark.long
@pytest.mark.services
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("version", ["4.0.4", "4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_an_installed_spark_is_kept_and_used(wheel: Path, tmp_path: Path, version: str) -> None:
    page = (ROOT / "docs" / "how" / "spark.md").read_text()
    example = re.search(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert example
    environment = Environment.with_spark(wheel, tmp_path / "environment", version)
    place = tmp_path / "work"
    place.mkdir()
    output = environment.run(example[1] + VERSION, place)
    assert output.splitlines()[-1] == f"pyspark {version}"
    assert [*place.rglob("*.parquet")]
