"""JSON bytes to values and back, with orjson or the standard library.

orjson is used if it is installed (extra ``fast``). Both give the same values and the same errors: the standard library
handles whatever orjson treats differently, which is integers above 64 bits (orjson reads them as floats), NaN (orjson
writes null) and input that orjson rejects (for example a lone surrogate).
"""

from __future__ import annotations

import json
from math import isinf
from typing import Any

try:
    import orjson as _orjson
except ImportError:
    _orjson = None  # type: ignore[assignment]

orjson: Any = _orjson

__all__ = ["NotJson", "dumps", "loads", "loads_plain"]

_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
_BOM = b"\xef\xbb\xbf"


class NotJson(ValueError):
    """Bytes that are not a JSON document, or whose nesting or numbers exceed what Python can hold."""


def _refuse_constant(name: str) -> object:
    raise NotJson(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise NotJson("a number too large for a float")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def loads(body: bytes) -> Any:  # JSON
    """Parse one UTF-8 JSON document; a byte order mark and surrounding white space are allowed. Raises NotJson."""
    if orjson is not None and _LONG_NUMBER not in body.translate(_AS_ZEROS):
        try:
            return orjson.loads(body)
        except ValueError:
            pass  # the standard library parses it, or gives the reason
    try:
        return _decode(body.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
    except RecursionError:
        reason = "nested too deep"
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        reason = f"not JSON at character {error.pos}"
    except ValueError:
        reason = "a number with too many digits"
    raise NotJson(reason)


def loads_plain(body: bytes) -> dict[str, Any] | None:
    """Parse an object whose values are strings or lists of strings, fast; return None for anything else.

    A result is always equal to that of :func:`loads`; after None, call ``loads``.
    """
    if orjson is None:
        return None
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    if document.__class__ is not dict:
        return None
    fields: dict[str, Any] = document
    try:
        for value in fields.values():
            if value.__class__ is not str:
                if value.__class__ is not list:
                    return None
                "".join(value)  # raises TypeError unless every entry is a string
    except TypeError:
        return None
    return fields


def dumps(value: Any) -> bytes:  # JSON
    """Return compact UTF-8 JSON.

    Raises ValueError for a string that UTF-8 cannot encode (a lone surrogate) and for a number that JSON cannot (NaN).
    """
    if orjson is not None:
        try:
            body: bytes = orjson.dumps(value)
        except TypeError:
            pass  # the standard library accepts integers above 64 bits, and also rejects a lone surrogate
        else:
            if b"null" not in body:  # a null may have been NaN
                return body
    return _encode(value).encode()
