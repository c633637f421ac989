"""Which services get the key in the environment: OpenAI, and those that the user lists or names in the command.

An address in a stored run or bundle is no such name, as that may be somebody else's. The steps of a run are other
processes, so what its command names is added to the list in the environment, which they inherit.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from gnn_encoder.settings.shared import is_address

KEY, BASE, ALLOWED = "OPENAI_API_KEY", "OPENAI_BASE_URL", "GNN_ENCODER_SERVICES"
"""Environment variables: the key, and one address, or several between spaces, that may have it."""


def addresses_in(value: Any) -> Iterator[str]:
    """Yields the addresses of services, without `#MODEL`, among a setting's value or a tree of settings."""
    if isinstance(value, str) and is_address(value):
        yield value.partition("#")[0]
    elif isinstance(value, Mapping):
        yield from addresses_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from addresses_in(one)


def allow_key(addresses: Iterable[str]) -> None:
    """Lets this process, and those that it starts, send the key to addresses that the user has named.

    They are https or this machine's; others have to be listed.
    """
    safe = [one for one in addresses if urlsplit(one).scheme == "https" or urlsplit(one).hostname in _HERE]
    if new := dict.fromkeys(one for one in safe if not may_have_key(one)):
        os.environ[ALLOWED] = " ".join([*os.environ.get(ALLOWED, "").split(), *new])


def may_have_key(address: str) -> bool:
    """Whether the key may be sent to an address."""
    listed = [os.environ.get(BASE, ""), *os.environ.get(ALLOWED, "").split()]
    parts = urlsplit(address)
    is_openai = parts.scheme == "https" and parts.hostname == "api.openai.com"
    return is_openai or address.rstrip("/") in {one.rstrip("/") for one in listed if one}


_HERE = ("127.0.0.1", "::1", "localhost")
