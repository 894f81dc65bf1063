"""Spark's own access to a bucket: Delta on ``s3a://``, on a real server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from statestore import StateStore
from statestore.storage import LocalStorage
from statestore.storage.s3 import S3Storage, delta_settings, s3a_settings
from tests.servers.s3 import S3Server
from tests.services.spark_process import run_module
from tests.syntax import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow]

CONF = ROOT / "conf" / "spark-s3.conf"


PROVIDERS = ["rocksdb", "hdfs"]


@pytest.fixture(scope="module")
def taken(s3: S3Server) -> tuple[str, dict[str, Any], str]:
    """A store that a separate Spark process has written: its place, its result and its output."""
    url = s3.url(uuid.uuid4().hex)
    given = {"url": url, "options": s3.options, "providers": PROVIDERS}
    return url, *run_module("spark_on_s3", given)


@pytest.mark.long
def test_spark_and_delta_write_and_read_a_bucket(taken: tuple[str, dict[str, Any], str]) -> None:
    """I7: rows, versions and offsets."""
    _, found, _ = taken
    assert [name for name, is_so in found.items() if is_so is False] == []
    assert "no-such-bucket" in found["a bucket that is not there"]


@pytest.mark.long
def test_what_spark_wrote_is_read_without_it(
    s3: S3Server, taken: tuple[str, dict[str, Any], str]
) -> None:
    """I7: s3fs reads the same rows and digests, in a process without a JVM."""
    url, found, _ = taken
    store = StateStore.open(url, storage_options=s3.options)
    assert [store.checkpoint(number).manifest.keyed[0].digest for number in (1, 2)] == found[
        "digests"
    ]
    keyed = store.restore(checkpoint=1, parallelism=2).keyed("totals", "total")
    rows = pa.concat_tables([keyed.to_arrow(subtask) for subtask in range(2)])
    assert sorted(rows["user"].to_pylist()) == found["rows"]
    offsets = store.restore(parallelism=3).operator_state("source", "offsets")
    assert [element["partition"] for element in offsets.subtask(2)] == [0, 1]
    # Arrow hashes and writes the same rows and gets the same digest.
    other = StateStore.open(f"{url}-arrow", table_format="parquet", storage_options=s3.options)
    with other.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed(
            "totals", "total", rows.select(["user", "total"]), key="user", max_parallelism=3
        )
    assert other.checkpoint().manifest.keyed[0].digest == found["digests"][0]


@pytest.mark.long
def test_no_secret_is_logged_or_stored(
    s3: S3Server, taken: tuple[str, dict[str, Any], str]
) -> None:
    """Not at level DEBUG, not in Spark's settings, and not in any object of the store."""
    url, found, said = taken
    assert "DEBUG" in said, "Spark's log was looked at"
    assert "s3a.S3AFileSystem" in said or "fs.s3a" in said
    assert s3.secret_key not in said
    assert "spark.hadoop.fs.s3a.attempts.maximum" in found["dump"]
    assert s3.access_key not in found["dump"]
    storage = S3Storage(url, s3.options)
    names = storage.list("")
    assert any("_delta_log/" in name for name in names)
    assert not any(s3.secret_key.encode() in storage.read(name) for name in names)


@pytest.mark.long
def test_a_query_continues_in_the_bucket(taken: tuple[str, dict[str, Any], str]) -> None:
    """It is shown, imported and exported, from one location to others."""
    emitted, shown = taken[1]["moved"]
    first, *others = emitted
    assert list(first) == ["2"]
    assert others == [first] * len(PROVIDERS)
    assert any(first.values())
    assert shown == [[2, "hdfs"], *([2, provider] for provider in PROVIDERS)]


def test_a_delta_table_needs_no_spark(s3: S3Server, url: str) -> None:
    """It needs no ``s3a`` either: the log is in the bucket, whichever program reads it."""
    store = StateStore.open(url, storage_options=s3.options)
    for number in (1, 2):
        with store.snapshot(parallelism=1) as checkpoint:
            rows = [{"k": k, "n": number} for k in range(5)]
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
    table = store.checkpoint().manifest.keyed_entry("u", "s").table
    assert (table.format, table.version) == ("delta", 1)
    options = delta_settings(s3.options)
    for version in (0, 1):
        read = DeltaTable(f"{url}/{table.path}", version=version, storage_options=options)
        found = pa.table(read.to_pyarrow_table(columns=["k", "n"])).to_pylist()
        assert sorted(row["k"] for row in found) == [*range(5)]
        assert {row["n"] for row in found} == {version + 1}


def test_every_setting_has_a_reason_and_no_secret() -> None:
    text = CONF.read_text()
    settings = [part for part in text.split("\n\n") if "\nspark." in part]
    assert all(part.startswith("# ") for part in settings)
    lines = [line for line in text.splitlines() if line.startswith("spark.")]
    assert len(settings) == len(lines) > 0
    assert not any(word in line.split()[0] for line in lines for word in ("secret", "key", "token"))


def test_options_for_s3a(s3: S3Server) -> None:
    """Only for this bucket; a credentials provider keeps keys of the environment out."""
    given = {
        "key": "k",
        "secret": "s",
        "endpoint_url": "http://127.0.0.1:1",
        "client_kwargs": {"region_name": "eu-central-1"},
    }
    base, provider = "fs.s3a.bucket.b.", "org.apache.hadoop.fs.s3a."
    assert s3a_settings("b", given) == {
        f"{base}access.key": "k",
        f"{base}secret.key": "s",
        f"{base}aws.credentials.provider": f"{provider}SimpleAWSCredentialsProvider",
        f"{base}endpoint": "http://127.0.0.1:1",
        f"{base}connection.ssl.enabled": "false",
        f"{base}path.style.access": "true",
        f"{base}endpoint.region": "eu-central-1",
    }
    assert s3a_settings("b", {"key": "k", "secret": "s", "token": "t"}) == {
        f"{base}access.key": "k",
        f"{base}secret.key": "s",
        f"{base}session.token": "t",
        f"{base}aws.credentials.provider": f"{provider}TemporaryAWSCredentialsProvider",
    }
    assert s3a_settings("b", {"profile": "me"}) == {
        f"{base}auth.profile.name": "me",
        f"{base}aws.credentials.provider": f"{provider}auth.ProfileAWSCredentialsProvider",
    }
    anonymous = f"{provider}AnonymousAWSCredentialsProvider"
    assert s3a_settings("b", {"anon": True}) == {f"{base}aws.credentials.provider": anonymous}
    assert s3a_settings("b", {}) == LocalStorage("x").hadoop_settings() == {}


def test_options_for_delta_rs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The credentials are found as in s3fs, and a commit is a conditional put."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    given = {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://127.0.0.1:1"}
    assert delta_settings(given | {"client_kwargs": {"region_name": "eu-central-1"}}) == {
        "aws_conditional_put": "etag",
        "aws_region": "eu-central-1",
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
    }
    profiles = tmp_path / "credentials"
    profiles.write_text("[me]\naws_access_key_id = mine\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    found = delta_settings({"profile": "me"})
    assert (found["aws_access_key_id"], found["aws_secret_access_key"]) == ("mine", "secret")
    assert delta_settings({"anon": True})["aws_skip_signature"] == "true"
    assert LocalStorage("x").delta_options() == {}
