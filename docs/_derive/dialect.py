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
    from collections.abc import Callable, Iterator

    from rbim.choices import Gap

__all__ = ["OTHERWISE", "dialect_page"]

OTHERWISE = {
    "api_version": 'api_version="2016-08-15"',
    "members_shape": "members_shape=MembersShape.NESTED",
    "singular_search": "singular_search=True",
    "bare_task_path": "bare_task_path=True",
    "invite_limit": "invite_limit=5",
    "zone": 'zone=ZoneInfo("Asia/Tokyo")',
    "character": 'character="utf16_unit"',
    "application_concurrency": "application_concurrency=200",
    "max_below_min_refused": "max_below_min_refused=False",
    "reversed_periods_refused": "reversed_periods_refused=False",
    "codes": 'codes={**CODES, "112399": busy}',
    "already_so": 'already_so={"InviteJoinGroup": {"590017"}}',
    "already_reasons": 'already_reasons={"already in group"}',
    "message_time_unit": 'message_time_unit="seconds"',
    "delivery_max_age": "delivery_max_age=3600",
    "delivery_max_ahead": "delivery_max_ahead=None",
    "normal_out_of_time": 'normal_out_of_time="refused"',
    "high_guarantee_out_of_time": 'high_guarantee_out_of_time="accepted"',
    "other_forms_refused": "other_forms_refused=True",
    "modify_clears_texts": "modify_clears_texts=True",
    "invited_member_fails": "invited_member_fails=True",
    "second_join_refused": "second_join_refused=False",
    "private_join_refused": "private_join_refused=False",
    "empty_search_finds_all": "empty_search_finds_all=False",
    "search_ignores_case": "search_ignores_case=True",
    "removal_refused_if_absent": 'removal_refused_if_absent="any"',
    "empty_group_deleted": "empty_group_deleted=False",
    "nearest_member": 'nearest_member="next"',
    "administrators_inherit": "administrators_inherit=False",
    "creator_demotion_refused": "creator_demotion_refused=False",
    "allowed_roles": 'allowed_roles={"DeleteGroup": {"creator"}}',
    "overflow_fails": "overflow_fails=False",
    "default_policies_apply": "default_policies_apply=False",
    "notifications": "notifications={}",
    "resend_after": "resend_after=(60.0,)",
}
"""Another value of each field, as Python code."""

REASONS = {
    "api_version": "public clients use it",
    "members_shape": "public JSON clients send it",
    "singular_search": "the address line of the description has the plural, only a sample has the singular",
    "bare_task_path": "the address line of the description has /save, only the sample lacks it",
    "invite_limit": "public clients send 50, and the 5 was seen nowhere else",
    "zone": "clients use the local time of their machines, and the platform is in China",
    "character": "the usual meaning of the word; an emoji is then one character",
    "application_concurrency": "the value differs between applications, and only the platform knows it",
    "max_below_min_refused": "such bounds contradict each other, and an error is better than an unknown effect",
    "reversed_periods_refused": "two policies can say the same, and the description's own default night ends at 23:59:59",
    "codes": "these codes were seen in public material",
    "already_so": "the meaning of these codes in the vendor's device SDK",
    "already_reasons": "the emulator's own text: the platform's values are not known",
    "message_time_unit": "CurTime, the other time of a delivery, is in milliseconds",
    "delivery_max_age": "time for a slow network; the description sets no limit",
    "delivery_max_ahead": "clocks of servers seldom differ by a minute; the description sets no limit",
    "normal_out_of_time": "a refused message is lost: see [below](#deliveries-outside-the-time-limits)",
    "high_guarantee_out_of_time": "the platform sends it again: see [below](#deliveries-outside-the-time-limits)",
    "other_forms_refused": "the description states both forms",
    "modify_clears_texts": "no default is stated for these fields, so nothing says that they change",
    "invited_member_fails": "the wanted state is reached, and fails lists invitees who could not be added",
    "second_join_refused": "the vendor's device SDK has a code for it",
    "private_join_refused": "the description offers only invitations as another way in",
    "empty_search_finds_all": "both fields are optional, and no condition means no restriction",
    "search_ignores_case": "the description does not mention case",
    "removal_refused_if_absent": "a removal without effect is an error; an answer cannot name some of the accounts",
    "empty_group_deleted": "every group has one creator, and this one would have none",
    "nearest_member": "the order of joining is the only order that the description implies",
    "administrators_inherit": "an administrator is next in rank",
    "creator_demotion_refused": "a group has one creator, and the request names no successor",
    "allowed_roles": "stated are invitations and removals by an administrator; the rest is common practice",
    "overflow_fails": "fails is stated to list invitees who could not be added",
    "default_policies_apply": "the description calls them the default policies",
    "notifications": "the message whose description fits the change best",
    "resend_after": "growing pauses, short enough for tests",
}
"""The reason for the default of each field."""

ANCHORS = {
    "codes": "#status-codes",
    "already_so": "#already-done",
    "notifications": "#notifications",
    "allowed_roles": "#allowed-roles",
}

INTRO = """# Dialect: choices that the interface leaves open

<!-- This page is made by `python docs/derive.py` from `rbim.dialect` and `rbim.emulator`: change the code, not the page. -->

In some places the interface description is silent, and in others it contradicts itself. Each such place leaves a
choice. The {dialect} choices that a client or a receiver can notice are the fields of one frozen object, the `Dialect`,
which client, receiver and emulator share. {rules} more choices change only what the emulator does, and so the result of a
test: they are the fields of `rbim.emulator.Rules`. Each default is the best public knowledge, with its reason, and a grade
says how well it is known. What changes no test's result is a constant in the emulator, with a comment.
"""

CHANGING = """## How to change it

Pass your own dialect to the client, to the receiver (`Receiver(dialect=...)`), and in tests also to the emulator, which
takes its rules, too: `Emulator(dialect=dialect, rules=Rules(invited_member_fails=True))`. Fields that you leave out keep
their defaults.

```python
from zoneinfo import ZoneInfo

from rbim import CODES, AsyncClient, Code, Dialect, Grade, Throttled

busy = Code(error=Throttled, grade=Grade.OFFICIAL, note="seen in our logs", before_effect=True)
dialect = Dialect(
    api_version="2016-08-15", invite_limit=5, zone=ZoneInfo("Asia/Shanghai"), codes={**CODES, "112399": busy}
)
client = AsyncClient.from_env(dialect=dialect)
print(client.dialect.error_of("112399").__name__, client.dialect.invite_limit)
```

Outside of Python, the dialect is the table `[dialect]` of the configuration file, the variable `RBIM_DIALECT`
(`members_shape=nested,invite_limit=5`) and the flag `--dialect KEY=VALUE` of every command, which can be repeated. The
emulator's command takes a rule by `rbim emulator --rule KEY=VALUE`. `rbim dialect` lists all fields and rules;
[Configuration](configuration.md#the-dialect) shows how to write each kind of value.

A test can check whether its result depends on a choice, and try another one: see
[Testing your code](testing.md#dialect-choices-that-the-interface-leaves-open). The signature is an open choice, too. The
default, `AppSigner`, does the same as public clients. `AsyncClient(signer=...)` replaces it by any object with `app_id`
and `sign(request)` ([Security](SECURITY.md#signatures)).

If the platform confirms or corrects one of these choices to you, please tell us: a better grade is worth a release.
"""

SKEW = """\
The description accepts a delivery if its `CheckSum` is right, whatever its `CurTime` (*Authentication*, step 5). rbim also
compares `CurTime` with this machine's clock, because anyone who has seen a delivery on the network can post it again.
`delivery_max_age` and `delivery_max_ahead` are the limits. If one of the two clocks is wrong, *every* delivery is outside
them. Then the mode decides, for these reasons:

- **Normal mode: accept and report.** The platform makes one attempt. A refused message is lost for good, and a wrong clock
  would lose all of them. An accepted one can do little harm: it is authentic, and the sink recognises a replay by its key.
- **High-guarantee mode: accept resends and report.** The platform sends a refused message again, so a refusal costs only
  a delay. A resend is accepted because it is not known whether it is signed anew.
- **Half of the retention, on each side.** A durable sink recognises a key for its `retention` (7 days). A replay has the
  `CurTime` of the original. If both are accepted within 3.5 days before and after this time, they are at most 7 days
  apart, and the replay is recognised. Beyond that, every delivery is refused.
- **Only with a durable sink.** Another sink forgets its keys when the process ends, so with it nothing outside the limits
  is accepted. In normal mode such messages are lost: use `SqliteInbox`, or set wider limits.

The price: an attacker who holds back a delivery on the network can post it later, once, for up to 3.5 days. If that is
worse for you than a lost message, use `normal_out_of_time="refused"`.

Each such delivery is a `Skewed` observation with the seconds between the clocks, accepted or not. The log has one warning
a minute, and OpenTelemetry counts them in `rbim.receiver.incidents` ([Observability](observability.md)).
"""

STATUS = """\
`codes` maps the platform's status codes to errors. None of them is documented for these operations. A
code that is not in the table becomes a plain `ApiError`, which carries the code. `before_effect` is True for a code
that comes before any effect: then rbim repeats even operations that are never repeated otherwise. It is False for all
these codes. The codes of grade `E` are the emulator's own.
"""


def dialect_page() -> str:
    """Return the page."""
    gaps, rules = [*Dialect.gaps()], [*Rules.gaps()]
    users = {only: [gap for gap in gaps if gap.only == only] for only in dict.fromkeys(gap.only for gap in gaps)}
    return "\n".join(
        [
            INTRO.format(dialect=len(gaps), rules=len(rules)),
            table(("grade", "source of the fact"), _grades()),
            "## Choices of client and emulator\n",
            _table(users[""]),
            "## Choices of emulator and receiver\n",
            _table(users["emulator and receiver"]),
            "## Choices of the receiver\n",
            _table(users["receiver"]),
            "## Rules of the emulator\n",
            "These choices do not change the requests and answers of the client.\n",
            _table(rules),
            CHANGING,
            "## Deliveries outside the time limits\n",
            SKEW,
            "## Status codes\n",
            STATUS,
            table(("codes", "error", "grade", "seen as"), _codes()),
            "## Already done\n",
            "After an attempt of unknown outcome, these codes count as done: the earlier attempt had its effect.\n",
            table(("operation", "codes"), _mapping("already_so", _listed)),
            "## Notifications\n",
            "The `NOTIFY_TEAM` message that the emulator sends when a group changes.\n",
            table(("change", "message"), _mapping("notifications", code)),
            "## Allowed roles\n",
            "The roles that may call an operation, if the emulator checks roles (`check_roles=True`).\n",
            table(("operation", "roles"), _mapping("allowed_roles", _listed)),
        ]
    )


def _listed(codes: frozenset[str]) -> str:
    return ", ".join(sorted(map(code, codes)))


def _grades() -> Iterator[tuple[str, str]]:
    words = words_below(rbim.codes, "Grade")
    for grade in Grade:
        yield code(grade.value), inline(words[grade.name])


def _table(gaps: list[Gap]) -> str:
    return table(("field", "default", "choice", "reason for the default", "grade"), map(_row, gaps))


def _row(gap: Gap) -> tuple[str, ...]:
    instead = code(OTHERWISE[gap.name])
    choice = f"{gap.settles} (*{gap.section}*). Another value: {instead}"
    return code(gap.name), _shown(gap), choice, REASONS[gap.name], code(gap.grade.value)


def _shown(gap: Gap) -> str:
    default = gap.default
    if isinstance(default, Mapping):
        where = ANCHORS[gap.name]
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
    default = cast("Mapping[str, object]", next(gap.default for gap in (*Dialect.gaps(), *Rules.gaps()) if gap.name == name))
    return ((code(key), show(value)) for key, value in default.items())
