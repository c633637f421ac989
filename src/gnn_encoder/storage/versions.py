"""Several states of a folder side by side in an object store, each below an address of its own."""

from functools import partial

from gnn_encoder.errors import UserError
from gnn_encoder.storage.listing import INDEX, listed, read_index, write_index
from gnn_encoder.storage.s3 import Address, client, patiently, telling


def versions(uri: str) -> dict[str, bool]:
    """Names below an address of folders that were sent from here, in order, and whether each is complete.

    Raises:
        UserError: the store cannot be used.
    """
    address = Address.parse(uri)
    with telling(address):
        pages = (
            client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=address.bucket, Prefix=address.key(""), Delimiter="/")
        )
        names = [
            each["Prefix"].removeprefix(address.key("")).rstrip("/")
            for page in pages
            for each in page.get("CommonPrefixes", [])
        ]
        found = {name: read_index(Address.parse(f"{uri}/{name}")) for name in names}
    return {name: index.complete for name, index in sorted(found.items()) if index}


def remove_folder(uri: str) -> None:
    """Remove a folder that was sent from here. Until nothing is left its index says that it is not complete.

    Raises:
        UserError: it has no index, or the store cannot be used.
    """
    address = Address.parse(uri)
    with telling(address):
        if (index := read_index(address)) is None:
            raise UserError(f"{uri} was not sent from here: remove it yourself")
        patiently(lambda: write_index(address, index.files, complete=False))
        for name in (*listed(address), INDEX):
            patiently(partial(client().delete_object, Bucket=address.bucket, Key=address.key(name)))
