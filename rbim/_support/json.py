"""JSON bytes to values and back: orjson where it is installed (extra ``fast``), the standard library otherwise.

Both roads give the same values and the same errors. What orjson reads differently is sent down the standard road:
integers past 64 bits (orjson makes floats of them), NaN (of which it makes null) and everything it refuses (a lone
surrogate, for one).
"""

from __future__ import annotations

import json
from math import isinf
from typing import Any, cast

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
    """Bytes that are no JSON document, or one that is nested or has numbers without end."""


def _refuse_constant(name: str) -> object:
    raise NotJson(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise NotJson("a number past all bounds")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def loads(body: bytes) -> Any:  # JSON
    """Read one UTF-8 JSON document, with or without a byte order mark and surrounding white space.

    Raises NotJson.
    """
    if orjson is not None and _LONG_NUMBER not in body.translate(_AS_ZEROS):
        try:
            return orjson.loads(body)
        except ValueError:
            pass  # the standard library reads it, or says why not
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
    """Read an object whose values are texts and lists of texts, fast; None for everything else, which :func:`loads` reads.

    Where it reads something, ``loads`` reads the same.
    """
    if orjson is None:
        return None
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    fields = cast("dict[str, Any]", document)
    try:
        for value in fields.values():
            if value.__class__ is not str:
                if value.__class__ is not list:
                    return None
                "".join(value)  # raises for anything but texts
    except TypeError:
        return None
    return fields


def dumps(value: Any) -> bytes:  # JSON
    """Write compact UTF-8 JSON.

    Raises ValueError for a text that UTF-8 cannot carry (a lone surrogate) and for a number that JSON cannot (NaN).
    """
    if orjson is not None:
        try:
            body: bytes = orjson.dumps(value)
        except TypeError:
            pass  # an integer past 64 bits is fine below, a lone surrogate is refused there as well
        else:
            if b"null" not in body:  # which may have been NaN
                return body
    return _encode(value).encode()
