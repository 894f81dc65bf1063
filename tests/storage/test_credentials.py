"""Credentials in a URL never appear in an error, a log or a repr."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError, SettingsError, StateStoreError
from statestore.settings import Settings
from statestore.storage import open_storage
from statestore.storage.addresses import without_credentials
from statestore.storage.s3 import S3Storage

# No message has these letters, so any two of them in one belong to the secret.
SECRET = "ЖЩЮЯ"
parts = st.text(f"{SECRET}/:@?#%+=~. \\", min_size=1, max_size=12).map(lambda s: f"Ж{s}Щ")
schemes = st.sampled_from(["s3://", "s3a://", "S3://", "s3:/", "gs://", "https://", "file://"])


@given(schemes, parts, st.none() | parts, st.sampled_from(["bucket", "bucket/a", "h:80/a@b/c"]))
def test_a_url_with_credentials_is_refused_without_quoting_them(
    scheme: str, user: str, password: str | None, rest: str
) -> None:
    """With slashes, colons and at signs, as secrets have them."""
    # Without a password, these cannot be distinguished from a path.
    assume(password is not None or not ("/" in user or scheme == "s3:/"))
    url = f"{scheme}{user}{'' if password is None else f':{password}'}@{rest}"
    with pytest.raises(StateStoreError) as refused:
        StateStore.open(url)
    text = f"{refused.value} {refused.value!r} {refused.value.__cause__!r}"
    assert not set(text) & set(SECRET)


@given(parts, parts)
def test_an_endpoint_with_credentials_is_refused(user: str, password: str) -> None:
    for endpoint in (f"http://{user}:{password}@host:9000", f"{user}:{password}@host"):
        options: tuple[dict[str, Any], ...] = (
            {"endpoint_url": endpoint},
            {"client_kwargs": {"endpoint_url": endpoint}},
        )
        for option in options:
            with pytest.raises(InvalidArgumentError) as refused:
                S3Storage("s3://bucket/a", option)
            assert not set(str(refused.value)) & set(SECRET)


def test_settings_refuse_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """Printed settings therefore have none."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SettingsError) as refused:
        Settings(store="s3://ЖKEY:ЩSEC/RETЮ@bucket/a")
    assert not set(f"{refused.value}{caplog.text}") & set(SECRET)


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/a@b", "s3://bucket/x=1/@", "/data/a:b@c", "file:///data/a:b@c", "relative/a:b@c"],
)
def test_names_that_only_resemble_credentials_are_accepted(url: str) -> None:
    """A store with such a name stays readable."""
    pytest.importorskip("s3fs")
    assert open_storage(url).url.endswith(url.removeprefix("file://").rpartition("/")[2])


@given(parts, parts)
def test_credentials_in_a_librarys_message_are_removed(user: str, password: str) -> None:
    text = f'Could not connect to the endpoint URL: "http://{user}:{password}@host/bucket"'
    assume(not set(f"{user}{password}") & set(" \"'"))
    assert not set(without_credentials(text)) & set(SECRET)
