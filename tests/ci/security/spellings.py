"""The spellings in which a planted secret is looked for in an output."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from functools import cache
from urllib.parse import quote, quote_plus

# What may stand between two characters of a secret in folded text: line ends, blanks, the borders of tables and panels,
# the quotes of a literal in several lines, "=" of quoted-printable. They are removed from the output.
FOLDS = re.compile(rb"(?:\\r|\\n|\\t|\\u2028|\xe2\x94[\x80-\xbf]|\xe2\x95[\x80-\xbf]|[\s|'\"=+,\\])+")


@cache
def spellings(secret):
    """Return triples: the name of a spelling, the bytes to look for in lower case, and these without what folds remove."""
    raw = secret.encode()
    found = {
        "raw": raw,
        "quoted": quote(secret, safe="").encode(),
        "quoted for a query": quote_plus(secret, safe="").encode(),
        "quoted twice": quote(quote(secret, safe=""), safe="").encode(),
        "repr": repr(secret)[1:-1].encode(),
        "repr of bytes": repr(raw)[2:-1].encode(),
        "JSON": json.dumps(secret)[1:-1].encode(),
        "hex": raw.hex().encode(),
        "UTF-16": secret.encode("utf-16-le"),
        "reversed": secret[::-1].encode(),
    }
    for shift in range(3):  # Base64 of a longer text spells it in one of three ways; its ends depend on what is beside it
        for name, encode in (("base64", b64encode), ("base64 for URLs", urlsafe_b64encode)):
            inner = encode(bytes(shift) + raw)
            found[f"{name}, shifted by {shift}"] = inner[4 if shift else 0 : len(inner) // 4 * 4 - 4]
    return [(name, _lower(each), FOLDS.sub(b"", _lower(each))) for name, each in found.items()]


def _lower(data):
    return data.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")


def spelled(secrets, output):
    """Return (secret's name, spelling) of each planted secret in an output, a text or bytes."""
    data = _lower(output.encode("utf-8", "backslashreplace") if isinstance(output, str) else bytes(output))
    unfolded = FOLDS.sub(b"", data)
    return [
        (name, spelling)
        for name, secret in secrets.items()
        for spelling, wanted, unfolded_one in spellings(secret)
        if wanted in data or unfolded_one in unfolded
    ]
