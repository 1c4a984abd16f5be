"""Certificates for the servers of the benchmarks that serve TLS, made by trustme."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Certificates", "certificates"]


@frozen
class Certificates:
    """Paths of PEM files: the authority's certificate for clients; the server's key and certificates."""

    ca: str
    server: str


@contextmanager
def certificates() -> Generator[Certificates]:
    """Yield certificates of 127.0.0.1, as files that last as long as the block. Raises ImportError without trustme."""
    import trustme

    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as folder:
        ca, server = Path(folder, "ca.pem"), Path(folder, "server.pem")
        authority.cert_pem.write_to_path(ca)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server)
        yield Certificates(str(ca), str(server))
