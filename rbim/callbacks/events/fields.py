"""Converters for event fields, one for each quirk: JSON value to Python value. Above each is the text on the wire."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from attrs import frozen

from rbim._support import json
from rbim.callbacks.events.enums import MsgType, Notice
from rbim.wire.quirks import read_text

__all__ = ["NO_ACCOUNT", "Account", "account", "accounts", "flag", "msg_type", "without_surrogates"]


@frozen
class Account:
    """An account as the platform writes it: ``<application_id>#<user_account>``.

    ``app_id`` is None if the text has no ``#``, which is common. ``str()`` returns the original text.
    """

    app_id: str | None
    user: str

    def __str__(self) -> str:
        return self.user if self.app_id is None else f"{self.app_id}#{self.user}"

    @classmethod
    def of(cls, text: str) -> "Account":
        """Return the account of a text, split at the first ``#``."""
        app_id, number_sign, user = text.partition("#")
        return cls(app_id, user) if number_sign else cls(None, text)


NO_ACCOUNT = Account(None, "")


# `"fromAccount": "aaf98f...#1001"`, `"fromAccount": "1001"`
def account(value: Any) -> Account:  # JSON
    """Convert an account."""
    return Account.of(read_text(value))


# `"tMembers": ["aaf98f...#1001", "aaf98f...#1002"]`, the older nesting `{"member": [...]}`, a single text,
# objects `[{"userName": "1001", "nickName": "..."}]`, and each of them as JSON in a text: `"[\\"1001\\"]"`
def accounts(value: Any) -> tuple[Account, ...]:  # JSON
    """Convert a list of accounts, in any shape: texts, objects, or JSON in a text, nested in any way.

    Of an object with a name for an account, such as ``userName``, only that counts; of any other, all values.
    """
    return tuple(account(each) for each in _leaves(value, _ACCOUNTS) if each not in (None, ""))


# `"resendFlag": "1"`, `"resendFlag": 1`, `"resendFlag": ""`, `"antispam": "true"`,
# `"antispam": {"hit": true, "label": "ad"}`
def flag(value: Any) -> bool:  # JSON
    """Convert a flag: False for zero, empty values and words such as "false", "no" and "null"; otherwise True.

    Of a list or an object, also as JSON in a text, one value that is True is enough. Of an object with a name for a flag,
    such as ``hit``, only that counts.
    """
    if value in (None, "", "0"):  # nearly always one of these
        return False
    return any(map(_is_set, _leaves(value, _FLAGS)))


def _is_set(value: Any) -> bool:  # JSON
    text = read_text(value).strip().lower()
    try:
        return float(text) != 0
    except ValueError:
        return text not in _NO


_NO = frozenset({"", "false", "no", "off", "null", "none"})
_ACCOUNTS = ("member", "members", "account", "useraccount", "username", "user", "userid", "memberid")
_FLAGS = ("antispam", "hit", "ishit", "matched", "spam", "isspam", "flag", "value", "result")


def _leaves(value: Any, names: Collection[str]) -> Iterator[Any]:  # JSON
    """Yield the single values of a JSON value in order, also those of JSON in a text.

    Of an object with one of the names, in any case and first come first, only the value of that name counts.
    """
    pending = [value]
    while pending:  # no recursion: JSON in a text may be nested deeply
        value = pending.pop()
        if isinstance(value, str) and value.lstrip().startswith(("[", "{", '"')):
            try:
                pending.append(without_surrogates(json.loads(value.encode())))
            except (ValueError, RecursionError):  # a text that only begins like JSON
                yield value
        elif isinstance(value, list):
            pending.extend(reversed(cast("Sequence[Any]", value)))
        elif isinstance(value, dict):
            pending.extend(reversed(_values(cast("dict[str, Any]", value), names)))
        else:
            yield value


def _values(fields: Mapping[str, Any], names: Collection[str]) -> list[Any]:  # JSON
    by_name = {name.replace("_", "").lower(): value for name, value in fields.items()}
    named = next((name for name in names if name in by_name), None)
    return list(fields.values()) if named is None else [by_name[named]]


# `"fromNick": "\ud83d"`
def without_surrogates(value: Any) -> Any:  # JSON
    """Replace lone surrogates in every text by U+FFFD: no store can hold them."""
    if isinstance(value, str):
        return value if _encodes(value) else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [without_surrogates(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in cast("Mapping[str, Any]", value).items()}
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_KINDS: dict[str, MsgType | Notice] = {each.value: each for kind in (MsgType, Notice) for each in kind}


# `"msgType": "TEXT"`, `"msgType": "TEAM_JOIN"`, `"msgType": "TEAM_MUTE"`
def msg_type(value: Any) -> MsgType | Notice | str:  # JSON
    """Convert a ``msgType`` to a member of MsgType or Notice, or keep an unknown text."""
    text = read_text(value)
    return _KINDS.get(text, text)
