"""Folders to and from an object store, against boto3 called directly with as many connections.

The floor is the bytes divided by the store's rate on this connection, which boto3's transfer measures. Our side also
computes digests. The environment names the store (AWS_ENDPOINT_URL).
"""

import argparse
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from boto3.s3.transfer import TransferConfig
from common import in_turns, show

from gnn_encoder.storage.s3 import Address, client
from gnn_encoder.storage.transfer import AT_ONCE, PART, get_folder, put_folder


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", required=True, help="an existing one; what is written there is removed")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prefix = f"benchmark-{uuid.uuid4()}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            large(Path(folder), f"s3://{options.bucket}/{prefix}", options.megabytes, options.rounds)
            small(Path(folder), f"s3://{options.bucket}/{prefix}", options.files, options.rounds)
        finally:
            for page in client().get_paginator("list_objects_v2").paginate(Bucket=options.bucket, Prefix=prefix):
                for item in page.get("Contents", []):
                    client().delete_object(Bucket=options.bucket, Key=item["Key"])


def large(folder: Path, uri: str, megabytes: int, rounds: int) -> None:
    """One large file."""
    source, target, plain = folder / "source", folder / "target", Address.parse(f"{uri}/plain")
    source.mkdir()
    (source / "large.bin").write_bytes(os.urandom(megabytes * 10**6))
    parts = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=AT_ONCE)

    def fetch() -> None:
        shutil.rmtree(target, ignore_errors=True)
        get_folder(f"{uri}/ours", target)

    sides = {
        "boto3 up": lambda: client().upload_file(str(source / "large.bin"), plain.bucket, plain.prefix, Config=parts),
        "put_folder": lambda: put_folder(source, f"{uri}/ours"),
        "boto3 down": lambda: client().download_file(plain.bucket, plain.prefix, str(folder / "plain"), Config=parts),
        "get_folder": fetch,
    }
    seconds, _ = in_turns(sides, rounds)
    peers = {"put_folder": "boto3 up", "get_folder": "boto3 down"}
    rows = [
        (
            name,
            f"{taken:.2f}",
            f"{megabytes / taken:.0f}",
            f"{seconds[peers[name]] / taken:.2f} ×" if name in peers else "",
        )
        for name, taken in seconds.items()
    ]
    show(f"{megabytes} MB, median of {rounds}", ("", "seconds", "MB/s", "of boto3's rate"), rows)


def small(folder: Path, uri: str, files: int, rounds: int) -> None:
    """Many small files, against sending the files one after the other."""
    source, plain = folder / "many", Address.parse(f"{uri}/plain-many")
    source.mkdir()
    for i in range(files):
        (source / f"{i}.txt").write_text(f"file {i}")

    def one_by_one() -> None:
        for path in source.iterdir():
            client().put_object(Bucket=plain.bucket, Key=plain.key(path.name), Body=path.read_bytes())

    sides = {"one by one": one_by_one, "put_folder": lambda: put_folder(source, f"{uri}/many")}
    seconds, _ = in_turns(sides, rounds)
    rows = [(name, f"{taken:.2f}", f"{seconds['one by one'] / taken:.2f} ×") for name, taken in seconds.items()]
    show(f"{files:,} small files, median of {rounds}", ("", "seconds", "faster by"), rows)


if __name__ == "__main__":
    main()
