"""Converters for event fields, one for each quirk: JSON value to Python value. Above each is the text on the wire."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from attrs import frozen

from rbim.callbacks.events.enums import MsgType, Notice
from rbim.wire.quirks import read_text

__all__ = ["NO_ACCOUNT", "Account", "account", "accounts", "flag", "msg_type"]


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


# `"tMembers": ["aaf98f...#1001", "aaf98f...#1002"]`; the older nesting `{"member": [...]}` and a single text work, too
def accounts(value: Any) -> tuple[Account, ...]:  # JSON
    """Convert a list of accounts."""
    return tuple(account(each) for each in _flat(value) if each not in (None, ""))


def _flat(value: Any) -> Iterator[Any]:  # JSON
    if isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _flat(each)
    elif isinstance(value, list):
        yield from cast("Iterable[Any]", value)
    else:
        yield value


# `"resendFlag": "1"`, `"resendFlag": 1`, `"resendFlag": ""`, `"antispam": "true"`
def flag(value: Any) -> bool:  # JSON
    """Convert a flag: False for zero, empty values and words such as "false", "no" and "null"; otherwise True."""
    if value in (None, "", "0"):  # nearly always one of these
        return False
    text = read_text(value).strip().lower()
    try:
        return float(text) != 0
    except ValueError:
        return text not in _NO


_NO = frozenset({"", "false", "no", "off", "null", "none", "[]", "{}"})
_KINDS: dict[str, MsgType | Notice] = {each.value: each for kind in (MsgType, Notice) for each in kind}


# `"msgType": "TEXT"`, `"msgType": "TEAM_JOIN"`, `"msgType": "TEAM_MUTE"`
def msg_type(value: Any) -> MsgType | Notice | str:  # JSON
    """Convert a ``msgType`` to a member of MsgType or Notice, or keep an unknown text."""
    text = read_text(value)
    return _KINDS.get(text, text)
