"""A certificate authority of one's own, as companies have them, and a server's certificate by it."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ADDRESS = "127.0.0.1"


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """The authority's certificate, and a file with key and certificate of a server at 127.0.0.1."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("A company", authority_key, "A company", authority_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    server = _certificate("A server", server_key, "A company", authority_key).add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))]), critical=False
    )
    pem = serialization.Encoding.PEM
    ca, both = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(authority.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    both.write_bytes(key + server.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    return ca, both


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, by: str, by_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, certificate_name)]) for certificate_name in (name, by)
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key())
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now - hour, now + hour)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
