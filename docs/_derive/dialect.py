"""The page on the choices that the interface description leaves open, derived from the dialect."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from itertools import groupby
from typing import TYPE_CHECKING, cast

import rbim.codes
from _derive.markdown import code, inline, table, words_below
from rbim.codes import CODES, Code, Grade
from rbim.dialect import Dialect
from rbim.emulator.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.choices import Gap

__all__ = ["dialect_page"]

INTRO = """# Dialect: choices that the interface leaves open

<!-- This page is made by `python docs/derive.py` from `rbim.dialect` and `rbim.emulator`: change the code, not the page. -->

Where the interface description is silent or contradicts itself, rbim has a choice that you can change. The {dialect}
choices that a client or a receiver can notice are the fields of the `Dialect`, which client, receiver and emulator share.
{rules} more choices change only the emulator, and so the result of a test: the fields of `rbim.emulator.Rules`.

```python
from zoneinfo import ZoneInfo

from rbim import CODES, AsyncClient, Code, Dialect, Grade, Throttled

busy = Code(error=Throttled, grade=Grade.OFFICIAL, note="seen in our logs", before_effect=True)
dialect = Dialect(
    api_version="2016-08-15", invite_limit=5, zone=ZoneInfo("Asia/Shanghai"), codes={{**CODES, "112399": busy}}
)
client = AsyncClient.from_env(dialect=dialect)
print(client.dialect.error_of("112399").__name__, client.dialect.invite_limit)
```

`Receiver(dialect=...)` takes it, too, and so does the emulator of your tests, with its rules: `Emulator(dialect=dialect,
rules=Rules(invited_member_fails=True))`. [Configuration](configuration.md#the-dialect) shows the file, the variable and
the flag. `rbim dialect FIELD` shows the values that a field takes, all entries of a table, and the section of the
description.

Each default is the best public knowledge. Its grade says how well it is known:
"""

SIGNATURE = """\
The signature is an open choice, too. The default, `AppSigner`, does the same as public clients. `AsyncClient(signer=...)`
replaces it ([Security](SECURITY.md#signatures)). If the platform confirms or corrects a choice to you, please tell us.
"""

SKEW = """\
The description accepts a delivery whatever its `CurTime`. rbim also compares `CurTime` with this machine's clock, because
anyone who has seen a delivery on the network can post it again. If one of the two clocks is wrong, *every* delivery is
outside `delivery_max_age` and `delivery_max_ahead`. Then the mode decides:

- **Normal mode: accept and report.** The platform makes one attempt, so a refused message is lost for good. An accepted
  one does little harm: it is authentic, and the sink recognises a replay by its key.
- **High-guarantee mode: accept resends and report.** The platform sends a refused message again, so a refusal costs only
  a delay.
- **Only with a durable sink, and for half of its retention** (3.5 of 7 days) before and after `CurTime`: so long it
  recognises every replay. Beyond that, and with another sink, such a delivery is refused: in normal mode the message is
  lost. Use `SqliteInbox`, or set wider limits.

The price: an attacker who holds back a delivery on the network can post it later, once, for up to 3.5 days. If that is
worse for you than a lost message, use `normal_out_of_time="refused"`. Each such delivery is a `Skewed` observation
([Observability](observability.md)).
"""

STATUS = """\
`codes` maps the platform's status codes to errors. None of them is documented for these operations. A code that is not in
the table becomes a plain `ApiError`. `before_effect=True` marks a code that comes before any effect: then rbim repeats
even operations that are never repeated otherwise. It is False for all these codes.
"""


def dialect_page() -> str:
    """Return the page."""
    gaps, rules = [*Dialect.gaps()], [*Rules.gaps()]
    head = ("default", "choice", "grade")
    return "\n".join(
        [
            INTRO.format(dialect=len(gaps), rules=len(rules)),
            table(("grade", "source of the fact"), _grades()),
            "## Choices of the dialect\n",
            table(("field", *head), map(_row, gaps)),
            SIGNATURE,
            "## Rules of the emulator\n",
            table(("rule", *head), map(_row, rules)),
            "## Deliveries outside the time limits\n",
            SKEW,
            "## Status codes\n",
            STATUS,
            table(("codes", "error", "grade", "seen as"), _codes()),
        ]
    )


def _grades() -> Iterator[tuple[str, str]]:
    words = words_below(rbim.codes, "Grade")
    for grade in Grade:
        yield code(grade.value), inline(words[grade.name])


def _row(gap: Gap) -> tuple[str, str, str, str]:
    return code(gap.name), _shown(gap), gap.settles, code(gap.grade.value)


def _shown(gap: Gap) -> str:
    default = gap.default
    if isinstance(default, Mapping):
        return f"{len(cast('Mapping[str, object]', default))} entries"
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
