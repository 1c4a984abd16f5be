"""The page on what the interface description leaves open, read from the dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from itertools import groupby
from typing import TYPE_CHECKING, cast

import rbim.dialect
from _derive.markdown import code, inline, table, words_below
from rbim.dialect import CODES, Code, Dialect, Gap, Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["OTHERWISE", "dialect_page"]

EMULATOR_ONLY = " (emulator only"
OTHERWISE = {
    "version": 'version="2016-08-15"',
    "members_shape": "members_shape=MembersShape.NESTED",
    "singular_search": "singular_search=True",
    "bare_task_path": "bare_task_path=True",
    "invite_limit": "invite_limit=5",
    "zone": 'zone=ZoneInfo("Asia/Tokyo")',
    "application_concurrency": "application_concurrency=200",
    "codes": 'codes={**CODES, "112399": busy}',
    "already_so": 'already_so={"InviteJoinGroup": {"590017"}}',
    "already_reasons": 'already_reasons={"already in group"}',
    "modify_resets_permission": "modify_resets_permission=False",
    "invited_member_fails": "invited_member_fails=True",
    "private_join_refused": "private_join_refused=False",
    "private_shown_as": 'private_shown_as="0"',
    "empty_search_finds_all": "empty_search_finds_all=False",
    "administrators_inherit": "administrators_inherit=False",
    "overflow_fails": "overflow_fails=False",
    "notifications": "notifications={}",
    "resend_after": "resend_after=(60.0,)",
    "resend_signed_anew": "resend_signed_anew=False",
}
"""Another value of each field, as one writes it."""

INTRO = """# What the interface leaves open

<!-- This page is made by `python docs/derive.py` from `rbim.dialect`: change the code, not the page. -->

The interface description is silent in places, and says two things in others. rbim decides nothing of that in passing: every
such choice is a field of one frozen object, the `Dialect`, which the client and the emulator share. Each default is the best
that is publicly known, and its grade says how well.
"""

CHANGING = """## How to change it

Give the client (and the emulator, in tests) a dialect that knows better. What is not told keeps its default.

```python
from zoneinfo import ZoneInfo

from rbim import CODES, AsyncClient, Code, Dialect, Grade, Throttled

busy = Code(error=Throttled, grade=Grade.OFFICIAL, note="seen in our logs", before_effect=True)
dialect = Dialect(
    version="2016-08-15", invite_limit=5, zone=ZoneInfo("Asia/Shanghai"), codes={**CODES, "112399": busy}
)
client = AsyncClient.from_env(dialect=dialect)
print(client.dialect.error_of("112399").__name__, client.dialect.invite_limit)
```

A test can ask whether what it sees depends on a guess, and try the other one: see
[Testing your code](testing.md#what-the-interface-leaves-open). Signing is left open as well. Its default,
`AppSigner`, is what public clients do; any object with `app_id` and `sign(request)` is put in its place by
`AsyncClient(signer=...)` ([Security](SECURITY.md#signatures)).

If the platform tells you what one of these is, tell us: a grade that rises is a change worth a release.
"""

STATUS = """\
`codes` maps the platform's status codes to errors. None of them is documented for these operations. A code that is
not there becomes a plain `ApiError`, which carries it. Where `before_effect` is True, even what must never be repeated is
repeated; it is so for none of these.
"""


def dialect_page() -> str:
    """Return the page."""
    gaps = [*Dialect.gaps()]
    client = [gap for gap in gaps if EMULATOR_ONLY not in gap.settles]
    emulator = [gap for gap in gaps if EMULATOR_ONLY in gap.settles]
    return "\n".join(
        [
            INTRO,
            table(("grade", "how well a fact is known"), _grades()),
            "## Choices of client and emulator\n",
            _table(client),
            "## Choices of the emulator\n",
            "The client asks nobody about these: what it sends and reads is the same either way.\n",
            _table(emulator),
            CHANGING,
            "## Status codes\n",
            STATUS,
            table(("codes", "error", "grade", "seen as"), _codes()),
            "## Already so\n",
            "After an attempt of unknown outcome these codes count as done: the earlier attempt did it.\n",
            table(("operation", "codes"), _mapping("already_so", _listed)),
            "## Notifications\n",
            "Which `NOTIFY_TEAM` message the emulator copies when a group changes.\n",
            table(("what happens", "message"), _mapping("notifications", code)),
        ]
    )


def _listed(codes: frozenset[str]) -> str:
    return ", ".join(sorted(map(code, codes)))


def _grades() -> Iterator[tuple[str, str]]:
    words = words_below(rbim.dialect, "Grade")
    for grade in Grade:
        yield code(grade.value), inline(words[grade.name])


def _table(gaps: list[Gap]) -> str:
    return table(("field", "default", "what it settles", "grade"), map(_row, gaps))


def _row(gap: Gap) -> tuple[str, ...]:
    settles = re.sub(r" \(emulator only(?:: (.*?))?\)", lambda found: f"; {found[1]}" if found[1] else "", gap.settles)
    instead = code(OTHERWISE[gap.name])
    return code(gap.name), _said(gap), f"{settles} (*{gap.section}*). Instead: {instead}", code(gap.grade.value)


def _said(gap: Gap) -> str:
    default = gap.default
    if isinstance(default, Mapping):
        where = {"codes": "#status-codes", "already_so": "#already-so", "notifications": "#notifications"}[gap.name]
        return f"[{len(cast('Mapping[str, object]', default))} entries]({where})"
    if isinstance(default, frozenset):
        return ", ".join(code(repr(each)) for each in sorted(cast("frozenset[str]", default)))
    if isinstance(default, tzinfo):
        return str(default)
    return code(repr(getattr(default, "value", default)))


def _codes() -> Iterator[tuple[str, ...]]:
    def same(entry: tuple[str, Code]) -> tuple[str, str, str]:
        return entry[1].error.__name__, entry[1].grade.value, entry[1].note

    for (error, grade, note), rows in groupby(CODES.items(), same):
        yield ", ".join(_runs([number for number, _ in rows])), code(error), code(grade), note


def _runs(numbers: list[str]) -> Iterator[str]:
    """Yield numbers that follow each other as one range."""
    for _, run in groupby(enumerate(numbers), lambda pair: int(pair[1]) - pair[0]):
        first, *rest = (number for _, number in run)
        yield f"{code(first)} to {code(rest[-1])}" if rest[1:] else ", ".join(map(code, [first, *rest]))


def _mapping(name: str, say: Callable[..., str]) -> Iterator[tuple[str, str]]:
    default = cast("Mapping[str, object]", next(gap.default for gap in Dialect.gaps() if gap.name == name))
    return ((code(key), say(value)) for key, value in default.items())
