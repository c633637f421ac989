"""A service in OpenAI's form at an address `ADDRESS#MODEL`, asked through the official client.

The key is in the environment variable OPENAI_API_KEY and nowhere else; `settings.services` says which addresses get it.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from gnn_encoder.errors import Unreachable, UserError, one_line, without_password
from gnn_encoder.settings.services import ALLOWED, KEY, may_have_key


@dataclass(frozen=True)
class Service:
    """A service at an address."""

    address: str

    @classmethod
    def named(cls, name: str) -> tuple["Service", str]:
        """The service, and the model's name, which may be empty, of `ADDRESS#MODEL`.

        Raises:
            UserError: the address has a password or a query, or is none.
        """
        address, _, model = name.partition("#")
        if without_password(address) != address or "?" in address:
            raise UserError(f"the address {without_password(address)} has a password or a query: give the key in {KEY}")
        try:
            _ = urlsplit(address).port  # the client refuses such a host or port by an exception of its own
        except ValueError as error:
            raise UserError(f"{address} is no address ({one_line(error)}): write http://HOST:PORT/v1#MODEL") from None
        return cls(address), model

    def client(self, kind: str, **waits: Any) -> Any:
        """A client of openai's class `kind`; `waits`: `max_retries` and `timeout` in seconds."""
        # By its name, so that the digest of the steps' code does not depend on the client's version.
        # Services of one's own often need no key, but the client needs some text.
        key = os.environ.get(KEY) if may_have_key(self.address) else ""
        return getattr(import_module("openai"), kind)(base_url=self.address, api_key=key or "none", **waits)

    def only_model(self, client: Any) -> str:
        """Asks for the only name of a service's models; raises UserError if there are others."""
        models = [str(model.id) for model in client.models.list().data]
        if len(models) != 1:
            raise UserError(
                f"{self.address} has the models {', '.join(models) or 'none'}: give one, as {self.address}#MODEL"
            )
        return models[0]

    def unreachable(self, model: str, gives_no: str, reason: str) -> Unreachable:
        """An error without the key, which some services repeat in theirs; `gives_no`: what is lacking."""
        key = os.environ.get(KEY)
        reason = reason.replace(key, "…") if key else reason
        if key and not may_have_key(self.address):
            reason += f"; the key was not sent: {ALLOWED}={self.address} allows it"
        return Unreachable(f"{self.address}#{model} gives no {gives_no}: {reason}")
