"""The parts of an emulator as its page in the browser asks for them: bounded lists as JSON, without the emulator's token.

Nothing is computed while no page is open; the latest exchanges are kept by reference.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from rbim.emulator.asgi import KEPT
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.errors import InvalidRequest
from rbim.operations.base import fields_of

if TYPE_CHECKING:
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.logs import DeliveryAttempt, RecordedRequest
    from rbim.emulator.platform.state import Group, Task

__all__ = [
    "MASK",
    "accounts",
    "as_curl",
    "changes",
    "counts",
    "group",
    "groups",
    "latest",
    "messages",
    "number_in",
    "request",
    "tasks",
]

MASK = "•••"
"""What stands in the place of a secret."""

MOST = 200  # entries of a list
MOST_REQUESTS = 1000  # in one answer: the page holds no more
MAX_VALUE = 160  # characters of a value in the list of requests
FEW = 3  # entries of a list in the list of requests
ATTEMPTS = 1000  # latest attempts among which messages are looked for
DIGITS = 18  # of a number in a path, at most
ANSWERLESS = ("refuse", "reset_before", "reset_after")

_POSITION = re.compile(r"([0-9a-f]+)-([0-9]{1,18})")  # the log's epoch, and the number of requests since it began


def number_in(text: str) -> int:
    """Return the number in a path. Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) < DIGITS):
        raise InvalidRequest(f"must be a number, from 1, not {text[:50]!r}")
    return int(text)


def counts(emulator: Emulator) -> dict[str, int]:
    """Return how many there are of each part."""
    return {
        "requests": emulator.requests.count,
        "groups": len(emulator.state.groups),
        "tasks": len(emulator.state.tasks),
        "deliveries": len(emulator.deliveries),
        "waiting": len(emulator.copier.queue),
        "faults": len(emulator.faults.counts),
        "copy_faults": len(emulator.copy_faults.counts),
    }


def changes(emulator: Emulator) -> list[float]:
    """Return numbers of which one changes whenever there is something new to show of groups, tasks or deliveries."""
    passed = emulator.clock.monotonic() if isinstance(emulator.clock, EmulatedClock) else 0
    return [*counts(emulator).values(), emulator.copier.changes, passed]


# Requests.


def latest(emulator: Emulator, position: str) -> dict[str, Any]:
    """Return the requests after a position, and the position to ask with next.

    With one of another log, such as ``0`` or one from before it was cleared, it is a ``start`` from the beginning.
    ``missed`` are those that are not listed because there are too many. ``took`` are the times of the answers to earlier
    requests, of the latest: these may have had none yet when they were listed.
    """
    log = emulator.requests
    found = _POSITION.fullmatch(position)
    resumed = found is not None and found[1] == log.epoch
    after = min(int(found[2]), log.count) if found is not None and resumed else 0
    dropped = log.count - len(log.records)
    first = max(after, log.count - MOST_REQUESTS, dropped)
    earlier = [emulator.asgi.exchange_of(each) for each in log.records[-KEPT:] if each.number <= after]
    return {
        "position": f"{log.epoch}-{log.count}",
        "start": not resumed,
        "missed": first - after,
        "items": [_listed(emulator, record) for record in log.records[first - dropped :]],
        "took": [(each.record.number, each.took) for each in earlier if each is not None and each.took is not None],
    }


def _listed(emulator: Emulator, record: RecordedRequest) -> Any:
    """Return one request for the list; the page asks for the rest."""
    exchange = emulator.asgi.exchange_of(record)
    item: dict[str, Any] = {
        "number": record.number,
        "at": record.at,
        "code": record.code,
        "effect": record.effect,
        "trouble": record.trouble,
        "attempt": record.attempt,
        "took": None if exchange is None else exchange.took,
        "status": None if exchange is None or exchange.response is None else exchange.response.status,
        "kept": exchange is not None and exchange.response is not None,
    }
    op = record.operation
    if op is None:
        item["path"] = record.path[:MAX_VALUE]
        texts = [item["path"]]
    else:
        item["operation"] = op.spec.name
        item["account"] = getattr(op, "user_name", None) or emulator.world.administrator
        values = ((a.name, getattr(op, a.name)) for a in fields_of(type(op)) if a.name != "user_name")
        item["values"] = [(name, _short(value)) for name, value in values if value is not None]
        texts = [item["account"], *[text for _, text in item["values"]]]
    token = emulator.credentials.app_token.reveal()
    return _without_token(emulator, item) if any(token in text for text in texts) else item


def _short(value: object) -> str:
    if isinstance(value, tuple):
        several = cast("tuple[object, ...]", value)
        more = f" … ({len(several)})" if len(several) > FEW else ""
        return ", ".join(_short(each) for each in several[:FEW]) + more
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def request(emulator: Emulator, number: str) -> Any:
    """Return one of the latest requests as it was sent and answered, and as a curl command."""
    log = emulator.requests
    at = number_in(number) - (log.count - len(log.records)) - 1
    if not 0 <= at < len(log.records):
        raise LookupError(f"the log has no request {number}")
    record = log.records[at]
    exchange = emulator.asgi.exchange_of(record)
    if exchange is None:
        return {"number": record.number, "exchange": None, "answer": None, "curl": None}
    own = emulator.own_credentials
    secret = () if own else ("authorization", "checksum")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
    query = exchange.query.decode("latin-1")
    curl = as_curl(
        record.path,
        exchange.body,
        app_id=emulator.credentials.app_id,
        stamp=f"{emulator.clock.now().astimezone(emulator.dialect.zone):%Y%m%d%H%M%S}",
        method=exchange.method,
    )
    shown = {
        "number": record.number,
        "exchange": {
            "method": exchange.method,
            "path": record.path,
            "query": query if own or not query else MASK,
            "headers": [(name, MASK if name.lower() in secret else value) for name, value in headers],
            "body": _content(exchange.body, exchange.size),
            "took": exchange.took,
        },
        "answer": None
        if exchange.response is None
        else {
            "status": exchange.response.status,
            "headers": list(exchange.response.headers.items()),
            "body": _content(exchange.response.body, exchange.answer_size),
            "sent": not any(name in ANSWERLESS for name in record.trouble),
        },
        "curl": curl if exchange.size == len(exchange.body) else None,
    }
    return _without_token(emulator, shown)


def _content(body: bytes, size: int) -> dict[str, Any]:
    """Return a body as text, or in Base64 if it is not UTF-8; ``size`` is that of the whole body."""
    cut = size > len(body)
    try:
        text = body.decode(errors="ignore" if cut else "strict")  # a cut may divide a character
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode(), "size": size, "cut": cut}
    return {"text": text, "size": size, "cut": cut}


def _without_token(emulator: Emulator, value: Any) -> Any:  # JSON
    """Return JSON without the emulator's token, wherever it stands in a text: also where a request has it by mistake.

    A token that is the application id, as in an experiment, is in every path and is no secret.
    """
    token = emulator.credentials.app_token.reveal()

    def masked(value: Any) -> Any:  # JSON
        if isinstance(value, str):
            return value.replace(token, MASK)
        if isinstance(value, dict):
            return {name: masked(each) for name, each in cast("dict[str, Any]", value).items()}
        return [masked(each) for each in cast("list[Any]", value)] if isinstance(value, (list, tuple)) else value

    return value if token == emulator.credentials.app_id else masked(value)


def as_curl(path: str, body: bytes, *, app_id: str, stamp: str, method: str = "POST") -> str:
    """Return a request as a command for a shell, which signs it for a day from ``stamp`` with ``RBIM_APP_TOKEN``."""
    segments = ["$RBIM_APP_ID" if segment == app_id else quote(segment, safe="~") for segment in path.lstrip("/").split("/")]
    text = body.decode(errors="replace")
    if text.encode() == body and all(each.isprintable() or each in "\n\t" for each in text):
        source, data = "", f"--data-raw {shlex.quote(text)}"
    else:
        source, data = f"printf %s {b64encode(body).decode()} | base64 -d | ", "--data-binary @-"
    verb = "" if method == "POST" else f" -X {shlex.quote(method)}"
    lines = [
        f"stamp={stamp}",
        "sig=$(printf %s \"$RBIM_APP_ID$RBIM_APP_TOKEN$stamp\" | md5sum | cut -d' ' -f1 | tr a-z A-Z)",
        f'{source}curl -sS{verb} "$RBIM_BASE_URL/{"/".join(segments)}?sig=$sig" \\',
        '    -H "Authorization: $(printf %s "$RBIM_APP_ID:$stamp" | base64 -w0)" \\',
        f"    -H 'Content-Type: application/json;charset=utf-8' {data}",
    ]
    return "\n".join(lines)


# Groups, accounts and tasks.


def groups(emulator: Emulator, text: str) -> dict[str, Any]:
    """List the newest groups whose id or name contains a text."""
    wanted = text.strip().casefold()  # a browser cannot send ".." without a space
    found = list(reversed(emulator.state.groups.values()))
    if wanted:
        found = [each for each in found if wanted in each.group_id.casefold() or wanted in each.name.casefold()]
    return {"total": len(found), "groups": [_summary(each) for each in found[:MOST]]}


def group(emulator: Emulator, group_id: str) -> dict[str, Any]:
    """Return one group with its members, their roles, and who waits to join."""
    found = emulator.state.groups.get(group_id)
    if found is None:
        raise LookupError(f"there is no group {group_id}")
    return _summary(found) | {
        "declared": found.declared,
        "group_domain": found.group_domain,
        "created": found.created.isoformat(),
        "accounts": [{"account": account, "role": str(role)} for account, role in found.members.items()],
        "invitations": list(found.invited),
        "applications": list(found.applied),
    }


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


def accounts(emulator: Emulator, text: str) -> dict[str, Any]:
    """List accounts whose name contains a text."""
    state, wanted = emulator.state, text.strip().casefold()
    joined: Counter[str] = Counter()
    for each in state.groups.values():
        joined.update(each.members.keys())
        joined.update(dict.fromkeys([*each.invited, *each.applied], 0))
    joined.update(dict.fromkeys([*state.never_logged_in, *(state.known or ())], 0))
    found = [each for each in reversed(joined.items()) if wanted in each[0].casefold()]
    shown = [
        {"account": account, "groups": count, "logged_in": state.has_logged_in(account)} for account, count in found[:MOST]
    ]
    return {"total": len(found), "accounts": shown}


def tasks(emulator: Emulator, _: str) -> dict[str, Any]:
    """List the newest call tasks, with whether each may call now."""
    made = emulator.state.tasks
    return {"total": len(made), "tasks": [_task(emulator, each) for each in islice(reversed(made.values()), MOST)]}


def _task(emulator: Emulator, task: Task) -> dict[str, Any]:
    request = task.request
    try:
        may_call = emulator.may_call(task.task_id)
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


# Message copies.


def messages(emulator: Emulator, _: str) -> Any:
    """List the latest copied messages, each with its attempts."""
    found: dict[int, list[DeliveryAttempt]] = {}
    for each in emulator.deliveries.records[-ATTEMPTS:]:
        found.setdefault(each.number, []).append(each)
    newest = sorted(found, reverse=True)[:MOST]
    document = {
        "waiting": len(emulator.copier.queue),
        "messages": [_message(found[number], own=emulator.own_credentials) for number in newest],
    }
    return _without_token(emulator, document)


def _message(attempts: list[DeliveryAttempt], *, own: bool) -> dict[str, Any]:
    """Return a message with its attempts, without their signatures if the token is not the emulator's own."""
    first, shown = attempts[0], list[dict[str, Any]]()
    for each in attempts:
        attempt = each.to_dict()
        if not own:
            attempt["headers"]["CheckSum"] = MASK
        shown.append({name: value for name, value in attempt.items() if name not in {"key", "number", "message_id", "body"}})
    return {
        "number": first.number,
        "message_id": first.message_id,
        "key": first.key,
        "event": first.document,
        "body": first.body.decode(errors="backslashreplace"),
        "attempts": shown,
    }
