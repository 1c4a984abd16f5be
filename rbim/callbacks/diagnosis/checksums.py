"""Search for the way a wrong ``CheckSum`` was computed: known mistakes, tried in turn.

The description defines ``CheckSum`` as the MD5 of AppId, AppToken, the text of the ``MD5`` header and ``CurTime``, joined
without separators (interface: Authentication, 3). A recipe is another way to combine these inputs, a part is another value
for one of them. The search assumes at most two mistakes at once and prefers the explanation with the fewest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim._support.text import one_line

if TYPE_CHECKING:
    from rbim.credentials import Credentials

__all__ = ["RECIPES", "Explanation", "Pair", "Part", "Parts", "Recipe", "algorithm_of", "explanation_of", "pairs_of"]

ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the hexadecimal digits of their digests
MOST_MISTAKES = 2  # at once
MOST_PAIRS = 4096  # of AppId and AppToken that are tried: enough for all pairs of 60 applications


@frozen
class Parts:
    """The four inputs of a ``CheckSum``, which are joined and hashed."""

    app_id: bytes
    token: bytes
    digest: bytes
    time: bytes


Joined = Callable[[Parts], bytes]


@frozen
class Recipe:
    """A way to compute a ``CheckSum``; ``text`` describes it and is empty for the described way.

    ``keyed``: it is an HMAC with the token as its key (default: no). ``hashed``: the joined bytes are hashed (default: yes).
    """

    text: str
    join: Joined
    keyed: bool = False
    hashed: bool = True


@frozen
class Part:
    """A value that may have been used for one of the inputs; ``text`` describes it, empty for the described value."""

    text: str
    value: bytes


@frozen
class Pair:
    """An AppId and a token; ``text`` describes the mistake if they do not belong together."""

    text: str
    app_id: bytes
    token: bytes


def _in_order(*names: str, by: bytes = b"", end: bytes = b"") -> Joined:
    return lambda parts: by.join(getattr(parts, name) for name in names) + end


ORDER = ("app_id", "token", "digest", "time")
NAMES = {"app_id": "AppId", "token": "AppToken", "digest": "MD5", "time": "CurTime"}
SEPARATORS = ("&", ":", "|", ",", ";", "+", "-", "_", ".", "/", "#", "$", "@", "=", " ", "\n", "\r\n", "\t")

SWAPPED = Recipe(
    "with AppId and AppToken swapped: check that they are not swapped in the configuration",
    _in_order("token", "app_id", "digest", "time"),
)
RECIPES = (
    Recipe("", _in_order(*ORDER)),
    SWAPPED,
    *(
        Recipe(f"with its parts in a wrong order: {', '.join(NAMES[name] for name in order)}", _in_order(*order))
        for order in permutations(ORDER)
        if order not in {ORDER, ("token", "app_id", "digest", "time")}
    ),
    *(Recipe(f"with {by!r} between its parts", _in_order(*ORDER, by=by.encode())) for by in SEPARATORS),
    *(
        Recipe(f"with {end!r} at the end (echo and editors append a newline)", _in_order(*ORDER, end=end.encode()))
        for end in ("\n", "\r\n")
    ),
    *(
        Recipe(f"without {' and '.join(NAMES[name] for name in ORDER if name not in kept)}", _in_order(*kept))
        for count in (3, 2)
        for kept in combinations(ORDER, count)
        if kept != ("digest", "time")
    ),
    Recipe("without AppId and AppToken: it contains no secret", _in_order("digest", "time")),
    Recipe("as the digest of the MD5 header alone: it contains no secret", _in_order("digest")),
    Recipe(
        "as a copy of the digest: CheckSum is the body's digest, like MD5, and contains no secret",
        _in_order("digest"),
        hashed=False,
    ),
    Recipe("as an HMAC with AppToken as its key", _in_order("app_id", "digest", "time"), keyed=True),
    Recipe("as an HMAC with AppToken as its key, without AppId", _in_order("digest", "time"), keyed=True),
    Recipe("as an HMAC of the digest with AppToken as its key", _in_order("digest"), keyed=True),
)
"""All ways that are tried; the first is the described one."""


def algorithm_of(digits: bytes) -> Callable[[bytes], bytes]:
    """Return the algorithm whose digests have as many hexadecimal digits. It returns lower-case digits."""
    name = ALGORITHMS[len(digits)]
    return lambda content: hashlib.new(name, content, usedforsecurity=False).hexdigest().encode()


def pairs_of(credentials: Sequence[Credentials], more: Sequence[str]) -> tuple[Pair, ...]:
    """Return pairs of AppId and token, at most 4096: first those that belong together, then those that do not.

    ``more`` are AppIds whose tokens are not known.
    """
    tokens = [(each, each.app_token.reveal().encode()) for each in credentials]
    pairs = [Pair("", each.app_id.encode(), token) for each, token in tokens]
    for app_id in dict.fromkeys(each.app_id for each in credentials):
        pairs += [
            Pair(
                f"with AppId {app_id} and the AppToken of application {other.app_id}: tokens are mixed up, here or there",
                app_id.encode(),
                token,
            )
            for other, token in tokens
            if other.app_id != app_id
        ]
    for app_id in more:
        start = f"with AppId {one_line(app_id, 80)}, which is not configured here, and the AppToken of application"
        pairs += [Pair(f"{start} {other.app_id}: correct the AppId here", app_id.encode(), token) for other, token in tokens]
    forms: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
        ("in lower case", bytes.lower),
        ("in upper case", bytes.upper),
        ("without the quotes around it", lambda token: token.strip(b"'\"")),
        ("with a newline at its end (read from a file and not stripped)", lambda token: token + b"\n"),
    )
    for each, token in tokens:
        pairs += [
            Pair(f"with the AppToken of application {each.app_id} {text}", each.app_id.encode(), form(token))
            for text, form in forms
        ]
    distinct: dict[tuple[bytes, bytes], Pair] = {}
    for pair in pairs:
        distinct.setdefault((pair.app_id, pair.token), pair)
    return tuple(distinct.values())[:MOST_PAIRS]


@frozen
class Explanation:
    """The way a ``CheckSum`` was computed: one text for each mistake, none if it was computed as described.

    If AppId and AppToken are swapped, there is no other text, because the "AppId" in it could be a token.
    """

    mistakes: tuple[str, ...]


def explanation_of(
    checksum: bytes, pairs: Sequence[Pair], digests: Sequence[Part], times: Sequence[Part]
) -> Explanation | None:
    """Return the way a ``CheckSum`` was computed, or None if no combination with at most two mistakes gives it."""
    algorithm, wanted = algorithm_of(checksum), checksum.lower()
    length = len(checksum)

    def made(recipe: Recipe, parts: Parts) -> bytes:
        joined = recipe.join(parts)
        if recipe.keyed:
            return hmac.new(parts.token, joined, ALGORITHMS[length]).hexdigest().encode()
        return algorithm(joined) if recipe.hashed else joined.lower()

    for pair, digest, time, recipe in _fewest_mistakes_first(pairs, digests, times, RECIPES):
        if made(recipe, Parts(pair.app_id, pair.token, digest.value, time.value)) == wanted:
            mistakes = tuple(each.text for each in (pair, digest, time, recipe) if each.text)
            return Explanation((recipe.text,) if recipe is SWAPPED else mistakes)
    return None


def _fewest_mistakes_first(*options: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield combinations with one option of each kind, those with the fewest mistakes (options with a text) first."""
    plain = [[each for each in kind if not each.text] for kind in options]
    others = [[each for each in kind if each.text] for kind in options]
    for count in range(MOST_MISTAKES + 1):
        for wrong in combinations(range(len(options)), count):
            yield from product(*(others[i] if i in wrong else plain[i] for i in range(len(options))))
