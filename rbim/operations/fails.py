"""The entries of ``fails`` in an answer, and the account of the request that each names; and failures under other names."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

from attrs import evolve, field, frozen

from rbim._support.text import empty
from rbim.operations.base import Answer, wire

__all__ = ["OWN_NAMES", "Fail", "RequestAccounts", "attributed", "failures_in"]

SEPARATORS = r"[\s,;\uff0c\uff1b\u3001|]+"  # also the Chinese comma, semicolon and enumeration comma
MAX_LIST = 100_000  # characters of a text that is read as an account or a list of accounts, at most
LONGEST_STEP = 40  # characters of a key in a path
COUNTS = frozenset({"count", "num", "number", "size", "total"})

OWN_NAMES = frozenset({"fail", "fails"})
"""The names that the list may have, in lower case."""


@frozen(kw_only=True)
class Fail(Answer):
    """An entry of ``fails``: an invited account that was not added, and the reason.

    ``member`` is the name as the platform wrote it. ``account`` is the account of the request that it names, also with
    surrounding blanks, with the prefix ``<app_id>#`` of this application, or in another case. It is None if the entry names
    no account of the request, or not clearly one. ``extra`` has its unknown fields. The values of ``reason`` are not
    documented; ``Dialect.already_reasons`` has those that mean success.
    """

    member: str = field(default="", metadata=wire(also=("userName",)))
    reason: str = field(default="", metadata=wire(also=("msg",)))
    extra: Mapping[str, Any] = field(factory=empty, hash=False)
    account: str | None = field(default=None, metadata=wire(local=True))


class RequestAccounts:
    """The accounts of a request, found by the names that an answer gives them.

    A name is compared as it is; then without surrounding blanks; then without the prefix ``<app_id>#`` of the application;
    then without regard to case. A name that two accounts could have finds none.
    """

    def __init__(self, accounts: Iterable[str], app_id: str | None = None) -> None:
        self._prefix = None if app_id is None else f"{app_id}#".casefold()
        self._exact = frozenset(accounts)

    @cached_property
    def _tables(self) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """The accounts by their names without prefix, and those in lower case; None where two have the same."""
        bare: dict[str, str | None] = {}
        folded: dict[str, str | None] = {}
        for account in self._exact:
            name = self._without_prefix(account)
            for table, key in ((bare, name), (folded, name.casefold())):
                table[key] = None if key in table else account
        return bare, folded

    def _without_prefix(self, name: str) -> str:
        name = name.strip()
        if self._prefix is not None and name.casefold().startswith(self._prefix):
            return name.partition("#")[2].strip()
        return name

    def find(self, name: str) -> str | None:
        """Return the account with this name, or None."""
        if len(name) > MAX_LIST:
            return None
        for exact in (name, name.strip()):
            if exact in self._exact:
                return exact
        bare, folded = self._tables
        name = self._without_prefix(name)
        return bare[name] if name in bare else folded.get(name.casefold())

    def find_all(self, text: str) -> list[tuple[str, str]]:
        """Return names and accounts of a text that lists several accounts; none if a part of it is no account."""
        if len(text) > MAX_LIST:
            return []
        found = [(part, self.find(part)) for part in re.split(SEPARATORS, text) if part]
        return [] if any(account is None for _, account in found) else cast("list[tuple[str, str]]", found)

    def names_others(self, value: object, account: str) -> bool:
        """Whether a JSON value names another account of the request, or holds further entries of ``fails``."""
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                fields = cast("dict[str, object]", each)
                if any(key.casefold() in OWN_NAMES for key in fields):
                    return True
                waiting += fields.keys()
                waiting += fields.values()
            elif isinstance(each, list):
                waiting += cast("list[object]", each)
            elif each is not None and self.find(str(each)) not in {None, account}:
                return True
        return False


def failures_in(fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the fields, at any depth, that have "fail" in their key and hold something, by their path: ``data.failList``.

    Empty values, false and 0 hold nothing. rbim reads no such field: it shows only that some account may have failed. A path
    has the beginning of a long key, because each field below it has a copy.
    """
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if "fail" in key.casefold():
            if value and value != "0":
                found[path + key] = value
        elif isinstance(value, dict):
            found |= failures_in(cast("dict[str, Any]", value), f"{path}{key[:LONGEST_STEP]}.")
        elif isinstance(value, list):
            entries = enumerate(cast("Any", value))
            found |= failures_in({f"[{index}]": each for index, each in entries}, path + key[:LONGEST_STEP])
    return found


def attributed(entries: Iterable[Fail], beside: list[Any], accounts: RequestAccounts) -> tuple[Fail, ...]:  # JSON
    """Return the entries with the account that each names; those that name none of the request keep ``account`` None.

    An entry that names several accounts becomes one for each: ``{"1002": "full"}``, ``"1002,1003"``. ``beside``: what stands
    beside the entries; each becomes an entry unless it is nothing, or only their number.
    """
    fails = [each for entry in entries for each in _attributed(entry, accounts)]
    if beside:
        fails += [each for value in beside for each in _beside(value, accounts, len(fails))]
    return tuple(fails)


def _attributed(entry: Fail, accounts: RequestAccounts) -> Iterator[Fail]:
    if entry.account is not None:
        yield entry
    elif entry.member:
        account = accounts.find(entry.member)
        if account is not None and not entry.extra:
            object.__setattr__(entry, "account", account)  # it was made for this answer; a second one would take longer
            yield entry
            return
        found = [(entry.member, account)] if account is not None else accounts.find_all(entry.member)
        reason, extra = entry.reason, entry.extra
        if not found or (extra and accounts.names_others(extra, found[0][1])):
            yield entry
            return
        for name, account in found:
            yield Fail(member=name, reason=reason, extra=extra, account=account)
    else:
        yield from _of_mapping(entry, accounts)


def _of_mapping(entry: Fail, accounts: RequestAccounts) -> Iterator[Fail]:
    """Yield an entry for each account that is a key of unknown fields, with its value as reason; then the rest."""
    rest = dict(entry.extra)
    for key, value in entry.extra.items():
        account = accounts.find(key)
        if account is not None and not accounts.names_others(value, account):
            del rest[key]
            reason, extra = _reason(value)
            yield evolve(entry, member=key, reason=reason, extra=extra, account=account)
    if rest or entry.reason or not entry.extra:
        yield evolve(entry, extra=rest)


def _reason(value: Any) -> tuple[str, Mapping[str, Any]]:  # JSON
    if isinstance(value, str) or value is None:
        return value or "", {}
    if isinstance(value, dict):
        fields = dict(cast("dict[str, Any]", value))
        reason = fields.pop("reason", None)
        if isinstance(reason, str):
            return reason, fields
    return json.dumps(value, ensure_ascii=False), {}


def _beside(value: Any, accounts: RequestAccounts, count: int) -> Iterator[Fail]:  # JSON
    """Yield entries for what stands beside the entries of a list; their number, or nothing, is none."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"fails": value}
    for entry in _attributed(Fail(extra=fields), accounts):
        if entry.account is not None or not all(_agrees(key, field, count, accounts) for key, field in entry.extra.items()):
            yield entry


def _agrees(key: str, value: object, count: int, accounts: RequestAccounts) -> bool:
    """Whether a field says only that there are so many entries: ``2``, ``"2"``; beside entries also a null.

    A number that is also an account of the request may name it, unless the key says that it is a count.
    """
    if key.casefold() not in COUNTS and isinstance(value, (str, int)) and accounts.find(str(value)) is not None:
        return False
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value) == count
    if value is None or value in ("", [], {}):
        return count > 0
    return value is not True and value == count
