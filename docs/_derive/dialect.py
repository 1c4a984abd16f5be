"""The page on the choices that the interface description leaves open, derived from the dialect."""

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
"""Another value of each field, as Python code."""

INTRO = """# Dialect: choices that the interface leaves open

<!-- This page is made by `python docs/derive.py` from `rbim.dialect`: change the code, not the page. -->

In some places the interface description is silent, and in others it contradicts itself. Each such place leaves a
choice, and each choice is a field of one frozen object, the `Dialect`, which the client and the emulator share. Each
default is the best public knowledge, and a grade says how well it is known.
"""

CHANGING = """## How to change it

Pass your own dialect to the client, and in tests also to the emulator. Fields that you leave out keep their defaults.

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

A test can check whether its result depends on a choice, and try another one: see
[Testing your code](testing.md#dialect-choices-that-the-interface-leaves-open). The signature is an open choice, too. The
default, `AppSigner`, does the same as public clients. `AsyncClient(signer=...)` replaces it by any object with `app_id`
and `sign(request)` ([Security](SECURITY.md#signatures)).

If the platform confirms or corrects one of these choices to you, please tell us: a better grade is worth a release.
"""

STATUS = """\
`codes` maps the platform's status codes to errors. None of them is documented for these operations. A
code that is not in the table becomes a plain `ApiError`, which carries the code. `before_effect` is True for a code
that comes before any effect: then rbim repeats even operations that are never repeated otherwise. It is False for all
these codes.
"""


def dialect_page() -> str:
    """Return the page."""
    gaps = [*Dialect.gaps()]
    client = [gap for gap in gaps if EMULATOR_ONLY not in gap.settles]
    emulator = [gap for gap in gaps if EMULATOR_ONLY in gap.settles]
    return "\n".join(
        [
            INTRO,
            table(("grade", "source of the fact"), _grades()),
            "## Choices of client and emulator\n",
            _table(client),
            "## Choices of the emulator\n",
            "These choices do not change the requests and answers of the client.\n",
            _table(emulator),
            CHANGING,
            "## Status codes\n",
            STATUS,
            table(("codes", "error", "grade", "seen as"), _codes()),
            "## Already done\n",
            "After an attempt of unknown outcome, these codes count as done: the earlier attempt had its effect.\n",
            table(("operation", "codes"), _mapping("already_so", _listed)),
            "## Notifications\n",
            "The `NOTIFY_TEAM` message that the emulator sends when a group changes.\n",
            table(("change", "message"), _mapping("notifications", code)),
        ]
    )


def _listed(codes: frozenset[str]) -> str:
    return ", ".join(sorted(map(code, codes)))


def _grades() -> Iterator[tuple[str, str]]:
    words = words_below(rbim.dialect, "Grade")
    for grade in Grade:
        yield code(grade.value), inline(words[grade.name])


def _table(gaps: list[Gap]) -> str:
    return table(("field", "default", "choice", "grade"), map(_row, gaps))


def _row(gap: Gap) -> tuple[str, ...]:
    settles = re.sub(r" \(emulator only(?:: (.*?))?\)", lambda found: f"; {found[1]}" if found[1] else "", gap.settles)
    instead = code(OTHERWISE[gap.name])
    return code(gap.name), _shown(gap), f"{settles} (*{gap.section}*). Another value: {instead}", code(gap.grade.value)


def _shown(gap: Gap) -> str:
    default = gap.default
    if isinstance(default, Mapping):
        where = {"codes": "#status-codes", "already_so": "#already-done", "notifications": "#notifications"}[gap.name]
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


def _mapping(name: str, show: Callable[..., str]) -> Iterator[tuple[str, str]]:
    default = cast("Mapping[str, object]", next(gap.default for gap in Dialect.gaps() if gap.name == name))
    return ((code(key), show(value)) for key, value in default.items())
