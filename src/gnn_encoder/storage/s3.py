"""Object stores: addresses, the client, and the meaning of a store's errors.

An address is `s3://BUCKET/PREFIX`. Credentials, region and endpoint are found as in every AWS program: in environment
variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL …), the shared configuration, or the role of a machine or a pod.
"""

import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gnn_encoder.errors import UserError, one_line, printable

Result = TypeVar("Result")

SCHEME = "s3://"
ADDRESSING = "GNN_ENCODER_S3_ADDRESSING"
"""Environment variable: `path` for http://store/bucket/key, `virtual` for http://bucket.store/key, or `auto`."""
AUTHORITIES = "AWS_CA_BUNDLE"
"""Environment variable of AWS programs: a PEM file of the authorities that may sign the store's certificate."""
CONNECTIONS = 32
ATTEMPTS = 4
"""Attempts of one request by boto3."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0)
"""Seconds between attempts of a transfer while the store is unavailable: three minutes in total."""

CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role"
ADVICE = {
    "SignatureDoesNotMatch": f"the store refuses the credentials: {CREDENTIALS}",
    "InvalidAccessKeyId": f"the store does not know the access key: {CREDENTIALS}",
    "AccessDenied": "the store denies access: ask for the right to read and write there",
    "403": f"the store denies access: {CREDENTIALS}",
    "ExpiredToken": "the credentials have expired: renew them",
    "NoSuchBucket": "there is no such bucket: create it, or name another",
    "404": "there is no such bucket or object: check the address",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the store's: set it",
    "QuotaExceeded": "the bucket is full: free space or raise its quota",
    "InsufficientStorage": "the store is full: free space there",
    "507": "the store is full: free space there",
}
"""Error code or HTTP status → what it means and what to do."""


@dataclass(frozen=True)
class Address:
    """A folder in a bucket; `prefix` has no slash at either end and is empty for the whole bucket."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, uri: str) -> "Address":
        """Parses a URI; raises UserError if the URI names no bucket."""
        bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
        if not uri.startswith(SCHEME) or not bucket:
            raise UserError(f"{uri} is no address in an object store: write {SCHEME}BUCKET/PREFIX")
        return cls(bucket, prefix.strip("/"))

    def key(self, name: str) -> str:
        """The key of the object with this name at the address."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def is_remote(path: str) -> bool:
    """Whether the path is an address in an object store."""
    return path.startswith(SCHEME)


@functools.cache
def client() -> Any:
    """The S3 client of this process; threads may share it. Raises UserError if the environment has wrong settings."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            s3={"addressing_style": os.environ.get(ADDRESSING) or "auto"},
            max_pool_connections=CONNECTIONS,
            connect_timeout=10,
            # Older stores reject the checksums that newer clients add. The folder's marker has SHA-256 digests instead.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise UserError(
            f"no object store can be used: {one_line(error)}; check AWS_ENDPOINT_URL, AWS_PROFILE and {ADDRESSING}"
        ) from None


@contextmanager
def store_errors(address: Address) -> Iterator[None]:
    """Turns a store's errors in the block into a UserError of one line without secrets."""
    from botocore.exceptions import BotoCoreError, ClientError
    from s3transfer.exceptions import RetriesExceededError

    try:
        yield
    except (BotoCoreError, ClientError, RetriesExceededError) as error:
        raise UserError(f"{address}: {_meaning(error)}") from None


def _meaning(error: Any) -> str:
    """Explains a store's error: the meaning and what to do."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, NoCredentialsError, SSLError

    if isinstance(error, ClientError):
        code, status = printable(error_code(error)), str(_status(error) or "")
        unknown = f"the store answers {code or status}: try again, or ask who runs it"
        return ADVICE.get(code) or ADVICE.get(status, unknown)
    if isinstance(error, NoCredentialsError):
        return "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    error = getattr(error, "last_exception", error)  # the error of the last attempt
    if not isinstance(error, ConnectionError | HTTPClientError):
        return f"{one_line(error)}; check the address and the credentials"
    endpoint = one_line(client().meta.endpoint_url)
    if isinstance(error, SSLError):
        return (
            f"no trusted connection to the store at {endpoint} ({one_line(error)}): set {AUTHORITIES} to a PEM file "
            "with the certificate of the authority that signed the store's"
        )
    return f"the store at {endpoint} cannot be reached ({type(error).__name__}): check AWS_ENDPOINT_URL and the network"


def retried(call: Callable[[], Result]) -> Result:
    """Returns the result of the call; repeats the call after each of `PAUSES` while the store is unavailable.

    boto3's own retries end within a second, but a restart of a store takes 11 to 16 s (Ceph). Use this function only
    after the store has answered once: nobody should wait three minutes for a wrong address.
    """
    for pause in PAUSES:
        try:
            return call()
        except Exception as error:
            if not _is_temporary(error):
                raise
        time.sleep(pause * random.uniform(0.75, 1.25))
    return call()


def _is_temporary(error: Exception) -> bool:
    """Whether waiting may help: no connection, a broken connection, or an internal error of the store."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, IncompleteReadError
    from s3transfer.exceptions import RetriesExceededError

    if isinstance(error, ClientError):
        return _status(error) in (500, 502, 503, 504)
    return isinstance(error, ConnectionError | HTTPClientError | IncompleteReadError | RetriesExceededError)


def error_code(error: Any) -> str:
    """The code of a `ClientError`; the HTTP status if the response had no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int | None:
    status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
