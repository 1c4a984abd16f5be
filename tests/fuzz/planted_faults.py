"""Faults that are put into rbim on purpose: a target that does not find its own proves nothing.

They replace what is inside rbim, so a change of its inside may break this file; :class:`NotPlanted` then says which fault to
write anew. No seed and no kept input shows one of them without the engine, except where the docstring says so.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLANTED", "NotPlanted", "plant"]

PLANTED: dict[str, Callable[[], None]] = {}
"""For each target, the function that plants a fault which it must find."""


class NotPlanted(Exception):
    """What a fault replaces is not there any more."""


def plant(target: str) -> None:
    """Plant the fault of a target in this process. Raises NotPlanted."""
    PLANTED[target]()


def _fault(function: Callable[[], None]) -> Callable[[], None]:
    PLANTED[function.__name__] = function
    return function


def _replace(module: str, name: str, value: object) -> Any:
    """Replace an attribute of a module, or of a class in it, and return the one before."""
    *path, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for each in path:
        owner = getattr(owner, each, None)
    if not hasattr(owner, last):
        raise NotPlanted(f"{inspect.stack()[1].function}: {module} has no {name}")
    before = inspect.getattr_static(owner, last)
    setattr(owner, last, value)
    return before


@_fault
def http_responses() -> None:
    """A response with a length and chunks is read, as a smuggled response has them."""

    def frame(reader: Any) -> None:
        if "transfer-encoding" in reader._headers:
            reader._headers.pop("content-length", None)
        before(reader)

    before = _replace("rbim.transports.asyncio.answer", "AnswerReader._frame", frame)


@_fault
def http_receiver() -> None:
    """A delivery with another body is accepted."""
    signature = importlib.import_module("rbim.callbacks.signature")

    def verify(headers: Any, body: bytes, **given: Any) -> Any:
        found = before(headers, body, **given)
        if isinstance(found, signature.Rejected) and found.reason is signature.Reason.BODY_MISMATCH:
            return signature.Verified(key=signature.Key("app"), age=0.0, cur_time=0)
        return found

    before = _replace("rbim.callbacks.receiver.intake", "verify", verify)


@_fault
def http_emulator() -> None:
    """A wrong field of a command is an error of the server."""
    _replace("rbim.emulator.server.control", "transform_error", None)


@_fault
def events() -> None:
    """The inbox takes only one spelling of the flag of a resend."""
    _replace("rbim.callbacks.delivery", "flag", lambda value: value == "1")


@_fault
def signatures() -> None:
    """Each Content-Encoding that begins with an i is taken for the plain one."""

    class Plain(str):
        __slots__ = ()

        def __contains__(self, value: object) -> bool:
            return value == b"" or (isinstance(value, bytes) and value.startswith(b"i"))

    _replace("rbim.callbacks.signature", "_PLAIN", Plain())


@_fault
def intake() -> None:
    """A length below zero reads a body without a limit."""

    def body(self: Any, environ: Any) -> bytes | None:
        try:
            length = int(environ["CONTENT_LENGTH"])
            found: bytes = environ["wsgi.input"].read(min(length, self._max_body + 1))
        except Exception:
            return None
        return found if len(found) == min(length, self._max_body + 1) else None

    _replace("rbim.callbacks.receiver.wsgi", "ReceiverWsgi._body", body)


@_fault
def answers() -> None:
    """An account that failed without a reason is not counted as failed."""

    def attributed(entries: Any, beside: Any, accounts: Any) -> Any:
        return tuple(each for each in before(entries, beside, accounts) if each.reason)

    before = _replace("rbim.operations.groups", "attributed", attributed)


@_fault
def job_input() -> None:
    """A line end of two characters counts as two where a block ends between them."""

    def whole_lines(stream: Any) -> Any:
        rest = b""
        while block := stream.read(1 << 17):
            rest += block
            cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
        if rest:
            yield rest

    _replace("rbim.bulk.input.lines", "_whole_lines", whole_lines)


@_fault
def configuration() -> None:
    """An error of a file shows the last line of it; the seeds show it, too."""

    def parsed(path: Any, content: bytes) -> Any:
        found, cause = before(path, content)
        return found, cause if found is not None else f"{cause}: {content.splitlines()[-1:]}"

    before = _replace("rbim.config.files", "_parsed", parsed)


@_fault
def values() -> None:
    """A platform may make a client wait for longer than a day."""
    _replace("rbim.wire.codec", "LONGEST_WAIT", 100_000.0)


@_fault
def messages() -> None:
    """The fields of a message on the servers are not checked."""
    _replace("rbim.jetstream.messages", "_require", lambda *_, **__: None)
