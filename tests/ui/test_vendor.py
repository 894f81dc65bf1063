"""The files of other projects: each is the one that its index names, and has its license."""

from __future__ import annotations

from statestore.ui.pages import SCRIPTS, STYLES
from tests.ui.vendor import FOLDER, INDEX, digest, vendored_files


def test_each_file_is_the_one_that_the_index_names() -> None:
    found = {file.name: digest((FOLDER / file.name).read_bytes()) for file in vendored_files()}
    assert found == {file.name: file.sha256 for file in vendored_files()}


def test_the_folder_has_no_other_file() -> None:
    names = {file.name for file in vendored_files()}
    assert {path.name for path in FOLDER.iterdir()} == names | {INDEX.name}


def test_each_project_has_its_license() -> None:
    licensed = {file.package for file in vendored_files() if file.name.endswith(".LICENSE.txt")}
    assert {file.package for file in vendored_files()} == licensed


def test_pages_use_each_file() -> None:
    used = {name.removeprefix("vendor/") for name in (*SCRIPTS, *STYLES) if "/" in name}
    code = {file.name for file in vendored_files() if not file.name.endswith(".LICENSE.txt")}
    assert used == code
