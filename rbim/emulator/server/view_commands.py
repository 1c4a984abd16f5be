"""The commands of the control interface that show parts of the emulator, and those that change one entry of a list.

The page in the browser is made of them. Lists are bounded, so that they cost little however much the emulator holds.
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections import Counter
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from attrs import frozen

from rbim.emulator.clock import EmulatedClock
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.emulator.server.commands import COMMANDS, CommandError, ControlContext, command
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import tzinfo

    from rbim.emulator.copies.log import DeliveryAttempt
    from rbim.emulator.exchanges import Exchange
    from rbim.emulator.platform.state import Group, Task
    from rbim.emulator.request_log import RecordedRequest

__all__ = ["COMMANDS", "MASK", "as_curl", "without_token"]

MOST = 200  # entries of a list
ATTEMPTS = 1000  # latest attempts among which messages are looked for
MASK = "•••"
"""What stands in the place of a secret."""

SHANGHAI = 8 * 3600  # seconds ahead of UTC, without summer time
_PLAIN = frozenset("\n\t")
ANSWERLESS = ("refuse", "reset_before", "reset_after")


@frozen(kw_only=True)
class _Number:
    """The number of a message."""

    number: int


@command("GET", "requests/{number}")
def _request(context: ControlContext, number: str) -> Any:
    """Return one of the latest requests as it was sent and answered, and as a curl command."""
    log = context.emulator.requests
    wanted = int(number) if number.isascii() and number.isdecimal() and len(number) < 18 else 0  # noqa: PLR2004  # digits
    at = wanted - (log.count - len(log.records)) - 1
    if not 0 <= at < len(log.records):
        raise LookupError(f"the log has no request {number}")
    record = log.records[at]
    exchanges = context.emulator.asgi.exchanges
    exchange = None if exchanges is None else exchanges.of(record)
    shown = {"number": record.number, "exchange": None, "answer": None, "curl": None}
    return shown if exchange is None else shown | _shown(context, record, exchange)


def _shown(context: ControlContext, record: RecordedRequest, exchange: Exchange) -> dict[str, Any]:
    emulator = context.emulator
    own = emulator.own_credentials
    response = exchange.response
    body, size = exchange.body
    secret = () if own else ("authorization", "checksum")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
    query = exchange.query.decode("latin-1")
    curl = as_curl(
        record.path,
        body,
        app_id=emulator.credentials.app_id,
        method=exchange.method,
        emulated=isinstance(emulator.clock, EmulatedClock),
        zone=emulator.dialect.zone,
    )
    answer = None
    if response is not None and exchange.answer is not None:
        answer = {
            "status": response.status,
            "headers": list(response.headers.items()),
            "body": _content(*exchange.answer),
            "sent": not any(name in ANSWERLESS for name in record.trouble),
        }
    shown = {
        "exchange": {
            "method": exchange.method,
            "path": record.path,
            "query": query if own or not query else MASK,
            "headers": [(name, MASK if name.lower() in secret else value) for name, value in headers],
            "body": _content(body, size),
            "took": exchange.took,
        },
        "answer": answer,
        "curl": curl if size == len(body) else None,
    }
    masked: dict[str, Any] = without_token(context, shown)
    return masked


def _content(body: bytes, size: int) -> dict[str, Any]:
    """Return a body as text, or in Base64 if it is not UTF-8; ``size`` is that of the whole body."""
    cut = size > len(body)
    try:
        text = body.decode(errors="ignore" if cut else "strict")  # a cut may divide a character
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode(), "size": size, "cut": cut}
    return {"text": text, "size": size, "cut": cut}


def without_token(context: ControlContext, value: Any) -> Any:  # JSON
    """Return JSON without the emulator's token, wherever it stands in a text: also where a request has it by mistake.

    A token that is the application id, as in an experiment, is in every path and is no secret.
    """
    credentials = context.emulator.credentials
    token = credentials.app_token.reveal()
    return _hidden(value, token) if token != credentials.app_id and _has(value, token) else value


def _has(value: Any, secret: str) -> bool:  # JSON
    if isinstance(value, str):
        return secret in value
    if isinstance(value, dict):
        return any(_has(each, secret) for each in cast("dict[str, Any]", value).values())
    return isinstance(value, (list, tuple)) and any(_has(each, secret) for each in cast("list[Any]", value))


def _hidden(value: Any, secret: str) -> Any:  # JSON
    """Return JSON without a secret."""
    if isinstance(value, str):
        return value.replace(secret, MASK)
    if isinstance(value, dict):
        return {name: _hidden(each, secret) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(each, secret) for each in cast("list[Any]", value)]
    return value


# A request as a command for a shell: it signs itself, with the variables that `rbim emulator` prints.


def as_curl(  # noqa: PLR0913  # the parts of a request
    path: str, body: bytes, *, app_id: str, method: str = "POST", emulated: bool = False, zone: tzinfo
) -> str:
    """Return the command. The token is that of ``RBIM_APP_TOKEN``, the time the emulator's if it is ``emulated``."""
    segments = ["$RBIM_APP_ID" if segment == app_id else quote(segment, safe="~") for segment in path.lstrip("/").split("/")]
    address = f'"$RBIM_BASE_URL/{"/".join(segments)}?sig=$sig"'
    verb = "" if method == "POST" else f" -X {shlex.quote(method)}"
    lines = [
        f"stamp=$(TZ={_zone(zone)} date {_moment(emulated=emulated)}+%Y%m%d%H%M%S)",
        "sig=$(printf %s \"$RBIM_APP_ID$RBIM_APP_TOKEN$stamp\" | md5sum | cut -d' ' -f1 | tr a-z A-Z)",
        f"{_source(body)}curl -sS{verb} {address} \\",
        '    -H "Authorization: $(printf %s "$RBIM_APP_ID:$stamp" | base64 -w0)" \\',
        f"    -H 'Content-Type: application/json;charset=utf-8' {_data(body)}",
    ]
    return "\n".join(lines)


def _moment(*, emulated: bool) -> str:
    clock = '$(curl -sS "$RBIM_BASE_URL/_emulator/clock" | sed \'s/.*"now":"\\([^"]*\\)".*/\\1/\')'
    return f'-d "{clock}" ' if emulated else ""


def _zone(zone: tzinfo) -> str:
    """Return a zone as a shell's ``TZ`` names it. A fixed offset has the opposite sign there."""
    name = getattr(zone, "key", None)
    if name is not None:
        return shlex.quote(name)
    offset = zone.utcoffset(datetime(2026, 1, 1))  # noqa: DTZ001  # of the zone's own time
    seconds = 0 if offset is None else int(offset.total_seconds())
    if seconds == SHANGHAI:
        return "Asia/Shanghai"
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"'<zone>{'-' if seconds >= 0 else ''}{hours}:{minutes:02}'"


def _text(body: bytes) -> str | None:
    """Return a body that a shell can hold in quotes, or None."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each in _PLAIN for each in text) else None


def _source(body: bytes) -> str:
    return "" if _text(body) is not None else f"printf %s {b64encode(body).decode()} | base64 -d | "


def _data(body: bytes) -> str:
    text = _text(body)
    return "--data-binary @-" if text is None else f"--data-raw {shlex.quote(text)}"


# Groups and accounts.


@command("GET", "groups")
def _groups(context: ControlContext, _: str) -> Any:
    """List the newest groups, at most 200, with the number of their members."""
    groups = context.emulator.state.groups
    return {"total": len(groups), "groups": [_summary(each) for each in islice(reversed(groups.values()), MOST)]}


@command("GET", "groups/{group_id}")
def _group(context: ControlContext, group_id: str) -> Any:
    """Return one group with its members, their roles, and who waits to join."""
    group = context.emulator.state.groups.get(group_id)
    if group is None:
        raise LookupError(f"there is no group {group_id}")
    return _summary(group) | {
        "declared": group.declared,
        "group_domain": group.group_domain,
        "created": group.created.isoformat(),
        "accounts": [{"account": account, "role": str(role)} for account, role in group.members.items()],
        "invitations": list(group.invited),
        "applications": list(group.applied),
    }


@command("GET", "groups/with/{text}")
def _groups_with(context: ControlContext, text: str) -> Any:
    """List the newest groups, at most 200, whose id or name contains a text."""
    wanted = text.strip().casefold()  # a browser cannot send ".." without a space
    groups = reversed(context.emulator.state.groups.values())
    found = [each for each in groups if wanted in each.group_id.casefold() or wanted in each.name.casefold()]
    return {"total": len(found), "groups": [_summary(each) for each in found[:MOST]]}


def _summary(group: Group) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "name": group.name,
        "type": str(group.type),
        "permission": str(group.permission),
        "target": str(group.target),
        "owner": group.owner,
        "members": len(group.members),
        "member_limit": group.type.member_limit,
        "invited": len(group.invited),
        "applied": len(group.applied),
    }


@command("GET", "accounts")
def _accounts(context: ControlContext, _: str) -> Any:
    """List accounts, at most 200, with their groups and whether they have logged in."""
    return _accounts_with(context, "")


@command("GET", "accounts/with/{text}")
def _accounts_with(context: ControlContext, text: str) -> Any:
    """List accounts, at most 200, whose name contains a text."""
    state, wanted = context.emulator.state, text.strip().casefold()
    groups: Counter[str] = Counter()
    for group in state.groups.values():
        groups.update(group.members.keys())
        groups.update(dict.fromkeys([*group.invited, *group.applied], 0))
    groups.update(dict.fromkeys([*state.never_logged_in, *(state.known or ())], 0))
    found = [each for each in reversed(groups.items()) if wanted in each[0].casefold()]
    return {
        "total": len(found),
        "accounts": [
            {"account": account, "groups": count, "logged_in": state.has_logged_in(account)}
            for account, count in found[:MOST]
        ],
    }


@command("GET", "tasks/newest")
def _newest_tasks(context: ControlContext, _: str) -> Any:
    """List the newest call tasks, at most 200, with whether each may call now."""
    tasks = context.emulator.state.tasks
    return {"total": len(tasks), "tasks": [_task(context, each) for each in islice(reversed(tasks.values()), MOST)]}


def _task(context: ControlContext, task: Task) -> dict[str, Any]:
    request = task.request
    try:
        may_call = context.emulator.may_call(task.task_id)
    except DependsOnDialect:
        may_call = None
    return {
        "task_id": task.task_id,
        "name": request.task_name,
        "description": request.task_desc,
        "bot_id": request.bot_id,
        "caller": request.caller,
        "first_day": request.start_date.isoformat(),
        "last_day": request.end_date.isoformat(),
        "max_concurrent": request.max_concurrent,
        "policies": [policy.name for policy in request.no_call_policies],
        "created": task.created.isoformat(),
        "may_call": may_call,
    }


# Single faults.


@command("GET", "faults/counts")
def _fault_counts(context: ControlContext, _: str) -> Any:
    """Return for each fault how many requests matched it, and how many it happened to."""
    return _counts(context.emulator.faults.counts)


@command("DELETE", "faults/{number}")
def _remove_fault(context: ControlContext, number: str) -> Any:
    """Remove one fault, by its number from 1; the counts of the others go on."""
    context.emulator.faults.remove(_number(number))
    return _fault_counts(context, "")


@command("GET", "copy-faults/counts")
def _copy_fault_counts(context: ControlContext, _: str) -> Any:
    """Return the same of each fault of copies, by messages."""
    return _counts(context.emulator.copy_faults.counts)


@command("DELETE", "copy-faults/{number}")
def _remove_copy_fault(context: ControlContext, number: str) -> Any:
    """Remove one fault of copies, by its number from 1; the counts of the others go on."""
    context.emulator.copy_faults.remove(_number(number))
    return _copy_fault_counts(context, "")


def _counts(counts: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"matched": matched, "happened": happened} for matched, happened in counts]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004  # digits
        raise InvalidRequest(f"must be the number of a fault, from 1, not {text[:50]!r}")
    return int(text)


# Message copies.


@command("GET", "messages")
def _messages(context: ControlContext, _: str) -> Any:
    """List the latest copied messages, at most 200, each with its attempts."""
    dispatch = context.emulator.copier.dispatch
    found: dict[int, list[DeliveryAttempt]] = {}
    for each in reversed(context.emulator.deliveries.records[-ATTEMPTS:]):
        found.setdefault(each.number, []).append(each)
    newest = [found[number] for number in sorted(found, reverse=True)[:MOST]]
    document = {
        "waiting": len(dispatch.queues),
        "messages": [_message(attempts[::-1], own=context.emulator.own_credentials) for attempts in newest],
    }
    return without_token(context, document)


def _message(attempts: list[DeliveryAttempt], *, own: bool) -> dict[str, Any]:
    first = attempts[0]
    return {
        "number": first.number,
        "message_id": first.message_id,
        "key": first.key,
        "event": first.document,
        "body": first.body.decode(errors="backslashreplace"),
        "attempts": [_attempt(each, own=own) for each in attempts],
    }


def _attempt(attempt: DeliveryAttempt, *, own: bool) -> dict[str, Any]:
    found = attempt.to_dict()
    if not own:
        found["headers"]["CheckSum"] = MASK
    return {name: each for name, each in found.items() if name not in {"key", "number", "message_id", "body"}}


@command("POST", "deliveries/again", _Number)
def _send_again(context: ControlContext, body: _Number) -> Any:
    """Deliver a copied message again, as a resend: number (emulator-only)."""
    if context.emulator.copier.dispatch.destination is None:
        raise CommandError("messages are not copied now: set a target first (PUT /_emulator/copy)")
    context.emulator.send_again(body.number)
    return {"number": body.number}
