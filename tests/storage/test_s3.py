"""What an address is, and how a store's errors are shown. With a store: tests/integration/test_storage.py."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from kfp_api import KfpServer
from private_ca import write_certificates
from s3transfer.exceptions import RetriesExceededError

from gnn_encoder.errors import UserError
from gnn_encoder.storage import s3
from gnn_encoder.storage.s3 import Address, client, is_remote, retried, store_errors
from gnn_encoder.storage.transfer import list_folder

SECRET = "wJalrXUtnFEMI"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    client.cache_clear()
    for name, value in (("ENDPOINT_URL", "http://127.0.0.1:9"), ("ACCESS_KEY_ID", "me"), ("SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def test_addresses() -> None:
    assert Address.parse("s3://bucket/a/b/") == Address("bucket", "a/b")
    assert Address.parse("s3://bucket").key("x") == "x"
    assert Address.parse("s3://bucket/a").key("x/y") == "a/x/y"
    assert str(Address.parse("s3://bucket/a")) == "s3://bucket/a"
    assert is_remote("s3://bucket") and not is_remote("/s3/bucket")
    for wrong in ("s3://", "s3:///a", "bucket/a", "http://bucket"):
        with pytest.raises(UserError, match="write s3://BUCKET/PREFIX"):
            Address.parse(wrong)


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (refused("SignatureDoesNotMatch", 403), "refuses the credentials"),
        (refused("InvalidAccessKeyId", 403), "does not know the access key"),
        (refused("403", 403), "denies access"),
        (refused("NoSuchBucket", 404), "no such bucket"),
        (refused("RequestTimeTooSkewed", 403), "clock differs"),
        (refused("QuotaExceeded", 403), "bucket is full"),
        (refused("Strange", 507), "store is full"),
        (refused("Strange", 418), "answers Strange"),
        (refused("\x1b[31mred", 418), r"answers \[31mred"),
        (RetriesExceededError(ReadTimeoutError(endpoint_url="http://127.0.0.1:9")), "cannot be reached"),
        (NoCredentialsError(), "no credentials"),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9"), r"at http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do_and_no_secret(error: Exception, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught, store_errors(Address("bucket", "a")):
        raise error
    line = str(caught.value)
    assert line.startswith("s3://bucket/a: ") and line.isprintable()
    assert SECRET not in line


@pytest.mark.slow
def test_a_certificate_that_a_private_authority_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, certificate = write_certificates(tmp_path)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    with KfpServer(certificate=certificate) as server:  # any server that speaks TLS
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for wrong in (str(tmp_path / "nothing.pem"), str(certificate)):
            monkeypatch.setenv(s3.AUTHORITIES, wrong)
            client.cache_clear()
            with pytest.raises(UserError, match=r"no trusted connection .*set AWS_CA_BUNDLE to a PEM file") as caught:
                list_folder("s3://bucket/a")
            assert "\n" not in str(caught.value)
        monkeypatch.setenv(s3.AUTHORITIES, str(authority))
        client.cache_clear()
        with pytest.raises(UserError, match="no such bucket or object"):  # as it says itself
            list_folder("s3://bucket/a")


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (refused("ServiceUnavailable", 503), 3),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9"), 3),
        (RetriesExceededError(ReadTimeoutError(endpoint_url="http://127.0.0.1:9")), 3),
        (refused("AccessDenied", 403), 1),
        (OSError("No space left on device"), 1),
    ],
)
def test_a_store_that_is_away_is_waited_for_and_one_that_refuses_is_not(
    error: Exception, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PAUSES", (0.0, 0.0))
    attempts = []

    def call() -> str:
        attempts.append(1)
        if len(attempts) < comes_back:
            raise error
        return "done"

    comes_back = 100
    with pytest.raises(type(error)):
        retried(call)
    assert len(attempts) == calls
    attempts.clear()
    comes_back = calls
    assert retried(call) == "done"


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), store_errors(Address("bucket", "a")):
        raise KeyError("a")
