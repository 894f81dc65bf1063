"""The address and credentials of a running S3 server, of whatever kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError

__all__ = ["BUCKET", "S3Access"]

BUCKET = "statestore-tests"


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """A running server: its address and its credentials."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str = BUCKET
    region: str = "us-east-1"

    @property
    def options(self) -> dict[str, Any]:
        """The ``storage_options`` of a store, as s3fs needs them."""
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": self.region},
            "config_kwargs": {"proxies": {}},
        }

    def through(self, endpoint: str) -> dict[str, Any]:
        """Return the options for the same server at another address."""
        return self.options | {"endpoint_url": endpoint}

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def make_bucket(self, name: str) -> None:
        """Create a bucket; raise OSError if the server refuses, or does not answer yet."""
        try:
            fsspec.filesystem("s3", **self.options).call_s3("create_bucket", Bucket=name)
        except BotoCoreError as error:  # not an OSError, unlike the errors of an answer
            raise ConnectionError(f"{self.endpoint} does not answer: {error}") from error
