"""A short text in the place of a step's checkpoints, by which a process says to other machines where it is."""

import os
from pathlib import Path

from gnn_encoder.storage.s3 import Address, client, error_code, is_remote, retried, store_errors
from gnn_encoder.storage.transfer import GONE

FILE = ".meeting"


class Meeting:
    """The text at `ROOT/NAME/.meeting`, in a folder or at an `s3://` address; a reader sees all of it or nothing.

    Each method raises a UserError of one line if the store refuses or cannot be reached for three minutes.
    """

    def __init__(self, root: str, name: str) -> None:
        self._address = Address.parse(f"{root.rstrip('/')}/{name}") if is_remote(root) else None
        self._file = Path(root, name, FILE)

    def __str__(self) -> str:
        return str(self._address or self._file.parent)

    def announce(self, text: str) -> None:
        """Writes the text in place of an earlier text."""
        if address := self._address:
            key, body = address.key(FILE), text.encode()
            with store_errors(address):
                retried(lambda: client().put_object(Bucket=address.bucket, Key=key, Body=body))
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f"{FILE}.partial-{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self._file)

    def read(self) -> str:
        """Returns the text; empty if there is none."""
        from botocore.exceptions import ClientError

        if not self._address:
            try:
                return self._file.read_text("utf-8")
            except FileNotFoundError:
                return ""
        address = self._address
        with store_errors(address):
            try:
                found = retried(lambda: client().get_object(Bucket=address.bucket, Key=address.key(FILE)))
                return str(found["Body"].read().decode(errors="replace"))
            except ClientError as error:
                if error_code(error) not in GONE:
                    raise
                return ""

    def close(self, text: str) -> None:
        """Removes the text, unless another process has replaced it."""
        if self.read() != text:
            return
        if address := self._address:
            with store_errors(address):
                retried(lambda: client().delete_object(Bucket=address.bucket, Key=address.key(FILE)))
        else:
            self._file.unlink(missing_ok=True)
