"""JSON bytes to values and back, with orjson or the standard library.

orjson is used if it is installed (extra ``fast``). Both give the same values and the same errors: the standard library
handles whatever orjson treats differently, which is integers above 64 bits (orjson reads them as floats), NaN (orjson
writes null) and input that orjson rejects (for example a lone surrogate). How deep a document may be nested is decided
here: the limits of the parsers differ, and that of the standard library differs from Python to Python.
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, Final

try:
    import orjson as _orjson
except ImportError:
    _orjson = None  # type: ignore[assignment]

orjson: Any = _orjson

__all__ = ["MOST_LEVELS", "NotJson", "dumps", "keys_of", "loads", "loads_plain", "loads_repaired"]

MOST_LEVELS: Final = 64
"""Levels of arrays and objects in a document at most; the interface has four."""

_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
_BOM = b"\xef\xbb\xbf"


class NotJson(ValueError):
    """Bytes that are not a JSON document, are nested too deep, or have a number that Python cannot hold."""


def _refuse_constant(name: str) -> object:
    raise NotJson(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise NotJson("a number too large for a float")
    return number


# Old programs write line ends and other control characters in texts as they are: they are read, too.
_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, strict=False).decode
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def loads(body: bytes) -> Any:  # JSON
    """Parse one UTF-8 JSON document; a byte order mark, surrounding white space and raw control characters are allowed.

    Raises NotJson, also if arrays and objects are nested more than MOST_LEVELS deep.
    """
    document = _parsed(body)
    if body.count(b"[") + body.count(b"{") > MOST_LEVELS and _is_deep([document]):
        raise NotJson(_TOO_DEEP)
    return document


_TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"
_CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})


def _is_deep(document: Any) -> bool:  # JSON
    level: list[Any] = [document]
    for _ in range(MOST_LEVELS + 1):
        level = [
            value
            for each in level
            for value in (each.values() if each.__class__ is dict else each)
            if value.__class__ in _CONTAINERS
        ]
    return bool(level)


def _parsed(body: bytes) -> Any:  # JSON
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
        reason = _TOO_DEEP
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        reason = f"not JSON at character {error.pos}"
    except ValueError:
        reason = "a number with too many digits"
    raise NotJson(reason)


def keys_of(body: bytes) -> tuple[set[str], list[str]]:
    """Return the keys in a document that ``loads`` has read, and those that one object has twice, in order."""
    keys: set[str] = set()
    twice: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        own: set[str] = set()
        for key, _ in pairs:
            if key in own:
                twice.append(key)
            own.add(key)
        keys.update(own)

    json.loads(body.removeprefix(_BOM), object_pairs_hook=note, strict=False)
    return keys, twice


_HALVES = rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]|\xed[\xa0-\xbf][\x80-\xbf]"
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_LONG_CHARACTERS = "[\u0800-\ufffc\U00010000-\U0010ffff]"  # three bytes or more: other charsets rarely look so


def loads_repaired(body: bytes) -> tuple[Any, bytes]:  # JSON
    """Parse a JSON document that other programs may have damaged; return it with its text in UTF-8. Raises NotJson.

    Bytes that are not UTF-8 are repaired one sequence at a time. A character above U+FFFF in two halves (CESU-8, as Java and
    MySQL write it) is joined; any other sequence becomes U+FFFD. A text that is GB18030 as a whole (which includes GBK and
    GB 2312) is read as that, if it has more sequences that are not UTF-8 than characters of three bytes or more that are.
    """
    try:
        return loads(body), body
    except NotJson:
        text = _repaired(body)
        if text == body:
            raise
    return loads(text), text


def _repaired(body: bytes) -> bytes:
    joined = re.sub(_HALVES, _joined, body)
    text = joined.decode("utf-8", "replace")
    bad = text.count(_REPLACED) - body.count(_REPLACED.encode())
    if bad > len(re.findall(_LONG_CHARACTERS, text)):
        try:
            return body.decode("gb18030").encode()
        except ValueError:
            pass
    return text.encode()


def _joined(halves: re.Match[bytes]) -> bytes:
    units = halves[0].decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace").encode()


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
