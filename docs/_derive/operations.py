"""The page on operations, derived from their declarations; each example runs against the emulator."""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
from enum import Enum
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import anyio
import attrs

import rbim
from _derive.markdown import code, inline, table, words_below
from rbim import AsyncClient, Dialect, GroupType, InvalidRequest, Permission, Repeat, Role, Success, Target
from rbim.emulator import EmulatedClock, Emulator
from rbim.operations import Operation, description_of, fields_of
from rbim.operations.catalogue import BUILT_IN, entries as entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim import Request, Response
    from rbim.operations.catalogue import CatalogueEntry

__all__ = ["EXAMPLES", "operations_page", "run_example"]

GROUP = "g80000049837291"  # the first group that an emulator makes
EXAMPLES = {
    "CreateGroup": """
group = await client.groups.create(
    name="产品公告", type=GroupType.PAID_500, declared="新品发布"
)
print(group.group_id)
""",
    "ModifyGroup": """
await client.groups.modify(
    group_id="g80000049837291", name="产品公告-华东", permission=Permission.VERIFIED
)
""",
    "DeleteGroup": """
await client.groups.delete(group_id="g80000049837291")
""",
    "SearchPublicGroups": """
for group in await client.groups.search(name="公告"):
    print(group.group_id, group.name, group.count)
""",
    "QueryGroupDetail": """
detail = await client.groups.detail(group_id="g80000049837291")
print(detail.name, detail.owner, detail.count, detail.date_created)
""",
    "JoinGroup": """
await client.acting_as("1003").groups.join(group_id="g80000049837291", declared="我是新客户")
""",
    "InviteJoinGroup": """
invited = await client.groups.invite(group_id="g80000049837291", members=["1003", "1004"])
print("invited:", *invited.invited)
for account, reason in invited.refused.items():
    print("refused:", account, reason)
""",
    "DeleteGroupMember": """
await client.groups.remove(group_id="g80000049837291", members=["1001"])
""",
    "LogoutGroup": """
await client.acting_as("1002").groups.leave(group_id="g80000049837291")
""",
    "SetMemberRole": """
await client.groups.set_role(group_id="g80000049837291", member="1001", role=Role.ADMINISTRATOR)
""",
    "CreateCallTask": """
from datetime import date

task = await client.calls.create_task(
    bot_id=7, task_name="满意度回访", start_date=date(2026, 1, 5), end_date=date(2026, 1, 9),
    min_concurrent=1, max_concurrent=5, caller="02187654321",
    call_policy=[NoCallPolicy.weekdays("周末", [Weekday.SATURDAY, Weekday.SUNDAY])],
)
print(task.task_id)
""",
}
VALUES = (GroupType, Permission, Target, Role)
MANY = 10_000  # more than any limit
WIDE = 90  # columns of a line of JSON
LENGTHS = re.compile(r"`\w+` has at most \d+ characters[^.]*\.[ \n]*")
"""A sentence of a docstring on what the table below it shows."""

MORE = {"Invited": "See [Many accounts](client.md#many-accounts)."}
"""Answers that another page explains, in place of their docstrings."""

INTRO = f"""# Operations

<!-- This page is made by `python docs/derive.py` from the catalogue: change the code, not the page. -->

You can call each operation as a method of the client, as a value (`client.send(QueryGroupDetail(group_id="g1"))`), and as
a command (`rbim groups detail g1`). Values beyond the limits below raise `InvalidRequest` before anything is sent.

- The examples run inside `async with AsyncClient.from_env() as client:`, with their names imported from `rbim`. The JSON
  below them is the request, and the answer of the emulator, which has a group `{GROUP}` with the members 1001 and 1002.
- All parameters are keyword arguments; those that are None are not sent. Group operations also take `user_name`, the acting
  account (default: that of the client). An operation without a table has only `group_id` besides.
- Answers keep unknown fields in `extra`. `Success` has `failures`: if it is not empty, the operation may have failed for
  some accounts, or for all.
- `groups.invite_all` and `groups.remove_all` take any number of accounts ([Many accounts](client.md#many-accounts)).
- "May be repeated" is explained in [Retries](errors.md#retries).
"""


class _Wire(Emulator):
    """An emulator that keeps the last request and its answer."""

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # the protocol's
        self.request = request
        self.response = await super().send(request, timeout=timeout)
        return self.response


async def _tried(text: str) -> tuple[Request, Response, list[str]]:
    wire, printed = _Wire(clock=EmulatedClock(auto=True)), list[str]()

    def note(*words: object) -> None:
        printed.append(" ".join(map(str, words)))

    async with AsyncClient(
        base_url="http://emulator", credentials=wire.credentials, transport=wire, clock=wire.clock
    ) as client:
        await client.groups.create(name="产品公告", type=GroupType.PAID_500)
        await client.groups.invite(group_id=GROUP, members=["1001", "1002"])
        names = {name: getattr(rbim, name) for name in rbim.__all__}
        names |= {"client": client, "print": note}
        compiled = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = types.FunctionType(compiled, names)()
        if waiting is not None:
            await waiting
    return wire.request, wire.response, printed


def run_example(text: str) -> tuple[Request, Response, list[str]]:
    """Run an example of the page against an emulator; return its last request and answer, and the lines it prints."""
    return anyio.run(_tried, text)


def _repeating(rule: Repeat | Callable[[Any], Repeat]) -> str:
    """Return how an operation may be repeated; if a function of the value decides, its docstring."""
    return str(rule) if isinstance(rule, Repeat) else rule.__doc__ or ""


def operations_page() -> str:
    """Return the page."""
    entries = [entry for name in BUILT_IN for entry in entries_of(name)]
    rows = (
        (
            f"[`{entry.namespace}.{entry.method}`](#{_anchor(entry)})",
            code(entry.operation.spec.name),
            code(entry.operation.spec.answer.__name__),
            _repeating(entry.operation.spec.repeat),
        )
        for entry in entries
    )
    parts = [INTRO, table(("method", "operation", "answer", "may be repeated"), rows)]
    parts += (_section(entry) for entry in entries)
    parts += ["## Values\n", "The choices that fields above accept, and their values on the wire.\n"]
    parts += map(_values, VALUES)
    return "\n".join(parts)


def _anchor(entry: CatalogueEntry) -> str:
    return f"{entry.namespace}-{entry.method}".replace("_", "-")


def _section(entry: CatalogueEntry) -> str:
    kind = entry.operation
    spec = kind.spec
    example = EXAMPLES[spec.name].strip()
    fields = [*_fields(kind)]
    request, response, _ = run_example(example)
    return "\n".join(
        [
            f"({_anchor(entry)})=",
            f"## {entry.namespace}.{entry.method}\n",
            f"{LENGTHS.sub('', inline(kind.__doc__ or '')).strip()}\n",
            *([table(("field", "type", "meaning", "limits", "default"), fields)] if len(fields) > 1 else []),
            f"```python\n{example}\n```\n",
            f"```json\n{_json(request.body)}\n```\n",
            *_answer(kind, response.body),
        ]
    )


def _json(body: bytes) -> str:
    """Return a document on one line, or one entry per line if the line is too long."""
    document = json.loads(body)
    short = json.dumps(document, ensure_ascii=False)
    return short if len(short) <= WIDE else json.dumps(document, ensure_ascii=False, indent=2)


def _fields(kind: type[Operation[Any]]) -> Iterator[tuple[str, ...]]:
    for each in fields_of(kind):
        if each.name == "user_name":
            continue
        required = each.default is attrs.NOTHING
        default = "*required*" if required else code(_shown(each.default))
        kind_of_value = _type(each.type).removesuffix(" | None")
        yield code(each.name), code(kind_of_value), description_of(each) or "", _limits(kind, each), default


def _type(kind: Any) -> str:  # a type expression
    if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
        return " | ".join(map(_type, get_args(kind)))
    if get_args(kind):
        return f"{get_origin(kind).__name__}[{', '.join('...' if a is ... else _type(a) for a in get_args(kind))}]"
    return "None" if kind is type(None) else kind.__name__


def _shown(default: object) -> str:
    return f"{type(default).__name__}.{default.name}" if isinstance(default, Enum) else repr(default)


def _limits(kind: type[Operation[Any]], each: attrs.Attribute[Any]) -> str:
    """Return the limits that the field's validator enforces, found by trying values."""
    found: list[str] = []
    if each.type is str and _refusal(each, ""):
        found.append("not empty")
    if (longest := _refusal(each, "x" * MANY)) and longest.length == MANY:
        found.append(f"at most {longest.limit} characters")
    if each.type is int and (least := _refusal(each, 0)):
        found.append(f"at least {least.limit}")
    if each.type == tuple[str, ...]:
        found.append("at least 1")
        found += [f"at most {most} (`Dialect.invite_limit`)" for most in [_most_members(kind, each)] if most]
    return ", ".join(found)


def _refusal(each: attrs.Attribute[Any], value: object) -> InvalidRequest | None:
    try:
        if each.validator is not None:
            each.validator(None, each, value)
    except InvalidRequest as error:
        return error
    return None


def _most_members(kind: type[Operation[Any]], each: attrs.Attribute[Any]) -> int | None:
    try:
        kind(**{"group_id": "g1", each.name: [f"m{number}" for number in range(MANY)]}).check(Dialect(), EmulatedClock())
    except InvalidRequest as error:
        return error.limit
    return None


def _answer(kind: type[Operation[Any]], body: bytes) -> Iterator[str]:
    """Yield an answer's JSON, and what it becomes; nothing for one that only says that it is done."""
    answer = kind.spec.answer
    if answer is Success:
        return
    yield f"```json\n{_json(body)}\n```\n"
    first, *others = inline(answer.__doc__ or "").split("\n\n")
    if answer.__name__ in MORE:
        others = [MORE[answer.__name__]]
    yield f"Answer: {code(answer.__name__)}. {' '.join([first, *others])}\n"
    rows = [*_answer_rows(answer, "")]
    if len(rows) > 1:
        yield table(("answer field", "type"), rows)


def _answer_rows(answer: type[Any], prefix: str) -> Iterator[tuple[str, ...]]:
    for each in fields_of(answer):
        if each.name == "extra":
            continue
        yield code(f"{prefix}{each.name}"), code(_type(each.type))
        row = next((a for a in get_args(each.type) if attrs.has(a)), None) if get_origin(each.type) is tuple else None
        if row is not None:
            yield from _answer_rows(row, f"{each.name}[].")


def _values(kind: type[Enum]) -> str:
    module = inspect.getmodule(kind)
    words = words_below(module, kind.__name__) if module else {}
    extra = [name for name in ("member_limit",) if hasattr(kind, name)]
    head = ["name", "wire", *(name.replace("_", " ") for name in extra), *(["meaning"] if words else [])]
    rows = (
        [
            code(f"{kind.__name__}.{member.name}"),
            code(getattr(member, "wire", None) or json.dumps(member.value)),
            *(str(getattr(member, name)) for name in extra),
            *([inline(words.get(member.name, ""))] if words else []),
        ]
        for member in kind
    )
    return f"### {kind.__name__}\n\n{inline(kind.__doc__ or '')}\n\n{table(head, rows)}"
