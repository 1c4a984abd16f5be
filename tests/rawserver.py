"""The scripted server of plain sockets that the conformance suite ships with, for the tests of everything else."""

from rbim.transports.conformance_server import (
    PATIENCE,
    Peer,
    RawServer,
    Received,
    byte_by_byte,
    chunked,
    closing,
    echoing,
    ending,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)

__all__ = [
    "PATIENCE",
    "Peer",
    "RawServer",
    "Received",
    "byte_by_byte",
    "chunked",
    "closing",
    "echoing",
    "ending",
    "head",
    "refusing_port",
    "reply",
    "resetting",
    "silent",
]
