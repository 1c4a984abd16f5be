"""The entries of ``fails`` in an answer, and the account of the request that each names; and failures under other names."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

from attrs import field, frozen

from rbim._support.text import empty
from rbim.operations.base import Answer, wire

__all__ = ["OWN_NAMES", "Fail", "RequestAccounts", "attributed", "failures_in"]

COUNTS = ("count", "num", "number", "size", "total")  # ends of the names of fields with the number of entries

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
        for exact in (name, name.strip()):
            if exact in self._exact:
                return exact
        bare, folded = self._tables
        name = self._without_prefix(name)
        return bare[name] if name in bare else folded.get(name.casefold())

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

    Empty values, false and 0 hold nothing. rbim reads no such field: it shows only that some account may have failed.
    """
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if "fail" in key.casefold():
            if value and value != "0":
                found[path + key] = value
        elif isinstance(value, dict):
            found |= failures_in(cast("dict[str, Any]", value), f"{path}{key}.")
        elif isinstance(value, list):
            entries = enumerate(cast("Any", value))
            found |= failures_in({f"[{index}]": each for index, each in entries}, path + key)
    return found


def attributed(entries: Iterable[Fail], beside: Iterable[Any], accounts: RequestAccounts) -> tuple[Fail, ...]:  # JSON
    """Return the entries with the account that each names; those that name none of the request keep ``account`` None.

    ``beside``: what stands beside the entries; each becomes an entry unless it is nothing, or only their number.
    """
    fails = tuple(entries)
    for entry in fails:
        account = accounts.find(entry.member) if entry.member and entry.account is None else None
        if account is not None and not (entry.extra and accounts.names_others(entry.extra, account)):
            object.__setattr__(entry, "account", account)  # it was made for this answer; a second one would take longer
    for value in beside:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"fails": value}
        counts = (key.casefold().endswith(COUNTS) and str(each) == str(len(fails)) for key, each in fields.items())
        if value and not all(counts):
            fails += (Fail(extra=fields),)
    return fails
