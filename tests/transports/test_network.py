"""Certificates and keys that cannot be used are named for what they are, and nobody is asked for a password."""

import re

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from helpers.tables import each_row
from helpers.transports import ASYNCIO, class_of, each_transport
from rbim import NotSent, Request
from rbim.transports._shared.network import tls_context


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Make a certificate and its key in every form; return their folder."""
    folder = tmp_path_factory.mktemp("keys")
    authority = trustme.CA()
    made, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    certificate = load_pem_x509_certificate(made.cert_chain_pems[0].bytes())
    key = load_pem_private_key(made.private_key_pem.bytes(), None)
    secret, forms = BestAvailableEncryption(b"x"), PrivateFormat
    contents = {
        "both.pem": made.private_key_and_cert_chain_pem.bytes(),
        "cert.pem": made.cert_chain_pems[0].bytes(),
        "key.pem": made.private_key_pem.bytes(),
        "other.pem": other.private_key_pem.bytes(),
        "encrypted.pem": key.private_bytes(Encoding.PEM, forms.PKCS8, secret),
        "encrypted-1.pem": key.private_bytes(Encoding.PEM, forms.TraditionalOpenSSL, secret),
        "cert.der": certificate.public_bytes(Encoding.DER),
        "key.der": key.private_bytes(Encoding.DER, forms.PKCS8, NoEncryption()),
        "key-1.der": key.private_bytes(Encoding.DER, forms.TraditionalOpenSSL, NoEncryption()),
        "all.pfx": pkcs12.serialize_key_and_certificates(b"a", key, certificate, None, secret),
        "junk.pem": b"hello",
        "empty.pem": b"",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


PFX = "PKCS#12 (PFX), not PEM: convert it (openssl pkcs12"
DER = "DER, not PEM: convert it (openssl x509"
NO_KEY = "no certificate with its key in PEM"


@each_row(
    "verify, cert, key, says",
    [
        ("cert.pem", "both.pem", None, None),
        (None, "cert.pem", "key.pem", None),
        (None, "cert.pem", "encrypted.pem", "encrypted.pem: the key is encrypted: decrypt it (openssl pkey"),
        (None, "cert.pem", "encrypted-1.pem", "encrypted-1.pem: the key is encrypted"),
        (None, "cert.pem", "key.der", f"key.der: {DER}"),
        (None, "cert.pem", "key-1.der", f"key-1.der: {DER}"),
        (None, "cert.der", "key.pem", f"cert.der: {DER}"),
        (None, "all.pfx", None, f"all.pfx: {PFX}"),
        (None, "cert.pem", "all.pfx", f"all.pfx: {PFX}"),
        (None, "cert.pem", "other.pem", "other.pem: the key does not belong to the certificate"),
        (None, "cert.pem", None, f"cert.pem: {NO_KEY}"),
        (None, "junk.pem", None, f"junk.pem: {NO_KEY}"),
        (None, "empty.pem", None, f"empty.pem: {NO_KEY}"),
        (None, "none.pem", None, "none.pem: no such file"),
        (None, "cert.pem", "none.pem", "none.pem: no such file"),
        ("cert.der", None, None, f"cert.der: {DER}"),
        ("all.pfx", None, None, f"all.pfx: {PFX}"),
        ("junk.pem", None, None, "junk.pem: no certificates in PEM"),
        ("none.pem", None, None, "none.pem: no such file"),
    ],
)
def test_a_certificate_is_used_or_named_for_what_it_is(verify, cert, key, says, files):
    paths = [str(files / each) for each in (cert, key) if each is not None]
    wanted = tuple(paths) if key is not None else paths[0] if paths else None
    trusted = True if verify is None else str(files / verify)
    if says is None:
        tls_context(trusted, wanted)
        return
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        tls_context(trusted, wanted)
    assert str(caught.value).startswith(str(files / says.partition(":")[0]))


@each_transport(among=(ASYNCIO,))
async def test_each_transport_names_an_encrypted_key(name, files):
    pair = (str(files / "cert.pem"), str(files / "encrypted.pem"))
    async with class_of(name)(cert=pair, trust_env=False) as transport:
        with pytest.raises(NotSent, match=r"encrypted\.pem: the key is encrypted: decrypt it"):
            await transport.send(Request(origin="https://127.0.0.1:9", path="/"), timeout=5)
