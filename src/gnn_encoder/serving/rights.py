"""What a caller may see: the passages of the caller's groups, by a field of the passages (`serve --rights FIELD`).

The groups are in a signed token that the caller sends (JWT, RFC 7519), or in a header that a proxy in front of the
server sets, and nobody else. They become a filter that no request can widen (`retrieval.filters`). A passage without a
group is seen by nobody.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from gnn_encoder.errors import UserError
from gnn_encoder.serving.schema import Refused

KEY = "GNN_ENCODER_RIGHTS_KEY"
"""The environment variable with the key of the tokens: a secret (HMAC), or a public key in PEM."""
SHORTEST = 32
"""Bytes of a secret: those of the shortest hash that signs (RFC 7518, 3.2)."""
BY_SECRET = ("HS256", "HS384", "HS512")
BY_PUBLIC_KEY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that are accepted. Never both: whoever knows a public key could sign with it as with a secret."""


@dataclass(frozen=True)
class Rights:
    """Where a caller's groups are, and the `field` that has the groups of each passage.

    key: of the tokens; then `claim` of a token has the groups, and `audience` is whom the token must be for, if any.
    header: that the proxy sets, with the groups between commas, in UTF-8; without a key.
    """

    field: str
    key: str = ""
    claim: str = "groups"
    audience: str | None = None
    header: str = ""

    def __post_init__(self) -> None:
        """Raises UserError for a key that is no public key in PEM, and for a short secret, or one that is public."""
        if self.key.startswith("-----"):
            try:
                load_pem_public_key(self.key.encode())
            except (ValueError, UnsupportedAlgorithm):
                raise UserError(f"{KEY} is no public key in PEM: give the key that checks tokens") from None
        elif _is_public(self.key):
            raise UserError(f"{KEY} is a public key, but not in PEM: give it with its line -----BEGIN PUBLIC KEY-----")
        elif self.key and len(self.key.encode()) < SHORTEST:
            raise UserError(f"{KEY} has fewer than {SHORTEST} bytes: give a longer secret, by chance")

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
        """Returns the filter of the passages that the sender of a request may see; raises Refused if it is unknown."""
        return {self.field: self._signed(headers) if self.key else self._set_by_proxy(headers)}

    def _signed(self, headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = sent[0].decode("latin-1").partition(" ") if len(sent) == 1 else ("", "", "")
        algorithms = BY_PUBLIC_KEY if self.key.startswith("-----") else BY_SECRET
        required = {"require": ["exp", self.claim]}
        try:
            if scheme.lower() != "bearer":
                raise jwt.InvalidTokenError
            claims = jwt.decode(token, self.key, list(algorithms), required, audience=self.audience)  # type: ignore[arg-type]
        except jwt.PyJWTError:
            wanted = "give a signed token that is valid now: Authorization: Bearer …"
            raise Refused(401, wanted, {"WWW-Authenticate": "Bearer"}) from None
        groups = claims[self.claim]
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(isinstance(group, str) and _is_unicode(group) for group in groups):
            raise Refused(401, f"the token's claim {self.claim!r} is no list of texts", {"WWW-Authenticate": "Bearer"})
        return [group for group in groups if group]  # an empty one is none, in a token and in a passage's field

    def _set_by_proxy(self, headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
        # Two of them: the proxy has added its header to the caller's, which says whatever the caller likes.
        sent = [value for name, value in headers if name == self.header.lower().encode()]
        if len(sent) != 1:
            raise Refused(401, f"the header {self.header} must be there once, set by the proxy")
        return [group for part in sent[0].decode("utf-8", "replace").split(",") if (group := part.strip())]


def _is_unicode(text: str) -> bool:
    """Returns whether a text has no half of a surrogate pair, which JSON can write and no passage has."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_public(key: str) -> bool:
    """Returns whether a text is a public key in a form that would be taken for a secret, with which all could sign."""
    if "-----BEGIN" in key or '"kty"' in key or key.startswith(("ssh-", "ecdsa-")):
        return True
    try:
        load_der_public_key(b64decode(key))  # PEM without its first and last line, as some pages show it
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def rights_of(
    field: str | None, key: str, claim: str, audience: str | None, header: str, token: str, trusts_proxy: bool
) -> Rights | None:
    """Returns the rights that the options of `serve` ask for, None without a field; `token`: the server's.

    Raises UserError for options that do not fit together, or would let callers name their groups themselves.
    """
    if field is None:
        if key or header or trusts_proxy or audience:
            raise UserError(f"{KEY}, --rights-header, --rights-audience and --trust-proxy need --rights FIELD")
        return None
    if key and header:
        raise UserError(f"groups come from {KEY} and from --rights-header: leave one of them out")
    if not key and not header:
        raise UserError(f"--rights needs the key of signed tokens in {KEY}, or --rights-header NAME behind a proxy")
    if key and token:
        raise UserError(f"with {KEY}, callers send their signed tokens: unset GNN_ENCODER_TOKEN")
    if header and audience:
        raise UserError(f"--rights-audience is about signed tokens: leave it out, or give their key in {KEY}")
    if header and not token and not trusts_proxy:
        raise UserError(
            f"anyone who reaches the server could set {header}: set GNN_ENCODER_TOKEN, which the proxy alone knows and "
            "sends, or say by --trust-proxy that nobody else reaches it"
        )
    return Rights(field, key, claim, audience, header)
