"""What a ``CheckSum`` was made of, where it was not made as described: everything that goes wrong, tried in turn.

``CheckSum`` is described as the MD5 of AppId, AppToken, the ``MD5`` header's text and ``CurTime``, joined without separators
(interface: Authentication, 3). A recipe says how else they may have been put together, a part what else may have stood for
one of them. At most two things are taken to be wrong at once; what needs the fewest is the explanation.
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

__all__ = ["RECIPES", "Pair", "Part", "Parts", "Recipe", "Sum", "algorithm_of", "explanation_of", "pairs_of"]

ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the hexadecimal digits of their digests
AT_ONCE = 2
PAIRS = 4096  # of applications' ids and tokens that are tried: all of 60 applications


@frozen
class Parts:
    """What is joined and hashed."""

    app_id: bytes
    token: bytes
    digest: bytes
    time: bytes


Joined = Callable[[Parts], bytes]


@frozen
class Recipe:
    """A way to make a ``CheckSum``, and the words for it. ``keyed`` stands for an HMAC with the token as its key."""

    words: str
    join: Joined
    keyed: bool = False
    hashed: bool = True


@frozen
class Part:
    """What may have stood for one of the parts, and the words for it."""

    words: str
    value: bytes


@frozen
class Pair:
    """An application's id and a token, and the words for where they are not of one application."""

    words: str
    app_id: bytes
    token: bytes


def _in_order(*names: str, by: bytes = b"", end: bytes = b"") -> Joined:
    return lambda parts: by.join(getattr(parts, name) for name in names) + end


ORDER = ("app_id", "token", "digest", "time")
NAMES = {"app_id": "AppId", "token": "AppToken", "digest": "MD5", "time": "CurTime"}
SEPARATORS = ("&", ":", "|", ",", ";", "+", "-", "_", ".", "/", "#", "$", "@", "=", " ", "\n", "\r\n", "\t")

SWAPPED = Recipe(
    "with AppId and AppToken swapped: look whether the two are the wrong way round where they are configured",
    _in_order("token", "app_id", "digest", "time"),
)
RECIPES = (
    Recipe("", _in_order(*ORDER)),
    SWAPPED,
    *(
        Recipe(f"with its parts in another order: {', '.join(NAMES[name] for name in order)}", _in_order(*order))
        for order in permutations(ORDER)
        if order not in {ORDER, ("token", "app_id", "digest", "time")}
    ),
    *(
        Recipe(f"with {by!r} between its parts, which are joined without anything", _in_order(*ORDER, by=by.encode()))
        for by in SEPARATORS
    ),
    *(
        Recipe(f"with {end!r} at the end (echo and editors put a newline there)", _in_order(*ORDER, end=end.encode()))
        for end in ("\n", "\r\n")
    ),
    *(
        Recipe(f"without {' and '.join(NAMES[name] for name in ORDER if name not in kept)}", _in_order(*kept))
        for count in (3, 2)
        for kept in combinations(ORDER, count)
        if kept != ("digest", "time")
    ),
    Recipe("without AppId and AppToken: nobody's secret is in it", _in_order("digest", "time")),
    Recipe("as the digest of the MD5 header alone: nobody's secret is in it", _in_order("digest")),
    Recipe(
        "as a copy of the digest: CheckSum is the body's digest, as MD5 is, and nobody's secret is in it",
        _in_order("digest"),
        hashed=False,
    ),
    Recipe("as an HMAC with AppToken for its key", _in_order("app_id", "digest", "time"), keyed=True),
    Recipe("as an HMAC with AppToken for its key, without AppId", _in_order("digest", "time"), keyed=True),
    Recipe("as an HMAC of the digest with AppToken for its key", _in_order("digest"), keyed=True),
)
"""All ways that are tried; the first is the one that is described."""


def algorithm_of(digits: bytes) -> Callable[[bytes], bytes]:
    """Return the algorithm whose digests have so many hexadecimal digits; it gives them in lower case."""
    name = ALGORITHMS[len(digits)]
    return lambda content: hashlib.new(name, content, usedforsecurity=False).hexdigest().encode()


def pairs_of(credentials: Sequence[Credentials], more: Sequence[str]) -> tuple[Pair, ...]:
    """Return every pair of an application's id and a token: first those that belong together, then those that do not.

    ``more`` are ids of applications whose tokens are not known.
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
        words = f"with AppId {one_line(app_id, 80)}, which is not known here, and the AppToken of application"
        pairs += [Pair(f"{words} {other.app_id}: correct the AppId here", app_id.encode(), token) for other, token in tokens]
    forms: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
        ("in lower case", bytes.lower),
        ("in upper case", bytes.upper),
        ("without the quotes around it", lambda token: token.strip(b"'\"")),
        ("with a newline at its end (a file that was read whole)", lambda token: token + b"\n"),
    )
    for each, token in tokens:
        pairs += [
            Pair(f"with the AppToken of application {each.app_id} {words}", each.app_id.encode(), form(token))
            for words, form in forms
        ]
    distinct: dict[tuple[bytes, bytes], Pair] = {}
    for pair in pairs:
        distinct.setdefault((pair.app_id, pair.token), pair)
    return tuple(distinct.values())[:PAIRS]


@frozen
class Sum:
    """A ``CheckSum`` explained: the words for each thing that is not as described.

    Where AppId and AppToken are swapped, there are no other words: what is called an AppId here may be a token.
    """

    words: tuple[str, ...]


def explanation_of(checksum: bytes, pairs: Sequence[Pair], digests: Sequence[Part], times: Sequence[Part]) -> Sum | None:
    """Return what a ``CheckSum`` was made of. What is as described has no words."""
    algorithm, wanted = algorithm_of(checksum), checksum.lower()
    length = len(checksum)

    def made(recipe: Recipe, parts: Parts) -> bytes:
        told = recipe.join(parts)
        if recipe.keyed:
            return hmac.new(parts.token, told, ALGORITHMS[length]).hexdigest().encode()
        return algorithm(told) if recipe.hashed else told.lower()

    for pair, digest, time, recipe in _deviating(pairs, digests, times, RECIPES):
        if made(recipe, Parts(pair.app_id, pair.token, digest.value, time.value)) == wanted:
            words = tuple(each.words for each in (pair, digest, time, recipe) if each.words)
            return Sum((recipe.words,) if recipe is SWAPPED else words)
    return None


def _deviating(*options: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield one of each kind of options, with as few as possible that are not as described: those that need words."""
    plain = [[each for each in kind if not each.words] for kind in options]
    others = [[each for each in kind if each.words] for kind in options]
    for count in range(AT_ONCE + 1):
        for wrong in combinations(range(len(options)), count):
            yield from product(*(others[i] if i in wrong else plain[i] for i in range(len(options))))
