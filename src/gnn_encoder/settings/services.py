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

    They are `safe`; others have to be listed.
    """
    if new := [one for one in safe(addresses) if not may_have_key(one)]:
        os.environ[ALLOWED] = " ".join([*os.environ.get(ALLOWED, "").split(), *new])


def safe(addresses: Iterable[str]) -> list[str]:
    """Returns those of some addresses, each once, that nobody on the way can read: https, or this machine."""
    parts = {one: _parts(one) for one in addresses}
    return [one for one, (scheme, host) in parts.items() if scheme == "https" or host in _HERE]


def may_have_key(address: str) -> bool:
    """Whether the key may be sent to an address."""
    listed = [os.environ.get(BASE, ""), *os.environ.get(ALLOWED, "").split()]
    is_openai = _parts(address) == ("https", "api.openai.com")
    return is_openai or address.rstrip("/") in {one.rstrip("/") for one in listed if one}


def _parts(address: str) -> tuple[str, str | None]:
    """Returns the scheme and the host of an address; none of what is no address, which the client refuses."""
    try:
        parts = urlsplit(address)
        return parts.scheme, parts.hostname
    except ValueError:
        return "", None


_HERE = ("127.0.0.1", "::1", "localhost")
