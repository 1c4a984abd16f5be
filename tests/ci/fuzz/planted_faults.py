"""Faults that are put into rbim on purpose: a target that does not find its own proves nothing.

They replace what is inside rbim, so a change of its inside may break this file; :class:`NotPlanted` then says which fault to
write anew. No seed and no kept input shows one of them without the engine, except where the docstring says so.
"""

import importlib
import inspect

PLANTED = {}  # for each target, the function that plants a fault which it must find


class NotPlanted(Exception):
    """What a fault replaces is not there any more."""


def plant(target):
    """Plant the fault of a target in this process. Raises NotPlanted."""
    PLANTED[target]()


def _fault(function):
    PLANTED[function.__name__] = function
    return function


def _replace(module, name, value):
    """Replace an attribute of a module, or of a class in it, and return the one before."""
    *path, last = name.split(".")
    owner = importlib.import_module(module)
    for each in path:
        owner = getattr(owner, each, None)
    if not hasattr(owner, last):
        raise NotPlanted(f"{inspect.stack()[1].function}: {module} has no {name}")
    before = inspect.getattr_static(owner, last)
    setattr(owner, last, value)
    return before


@_fault
def http_responses():
    """A response with a length and chunks is read, as a smuggled response has them."""

    def frame(reader):
        if "transfer-encoding" in reader._headers:
            reader._headers.pop("content-length", None)
        before(reader)

    before = _replace("rbim.transports.asyncio.answer", "AnswerReader._frame", frame)


@_fault
def http_receiver():
    """A delivery with another body is accepted."""
    signature = importlib.import_module("rbim.callbacks.signature")

    def verify(headers, body, **given):
        found = before(headers, body, **given)
        if isinstance(found, signature.Rejected) and found.reason is signature.Reason.BODY_MISMATCH:
            return signature.Verified(key=signature.Key("app"), age=0.0, cur_time=0)
        return found

    before = _replace("rbim.callbacks.receiver.intake", "verify", verify)


@_fault
def http_emulator():
    """A wrong field of a command is an error of the server."""
    _replace("rbim.emulator.documents", "transform_error", None)
