"""The quirks of event bodies, one function each: how a JSON value becomes a Python value. Above each is the wire text."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from attrs import frozen

from rbim.callbacks.events.enums import MsgType, Notice
from rbim.wire.quirks import read_text

__all__ = ["NOBODY", "Account", "account", "accounts", "flag", "msg_type"]


@frozen
class Account:
    """An account as the platform writes it: ``<application_id>#<user_account>``.

    ``app_id`` is None where the text has no ``#``, which is nothing unusual. ``str()`` gives the text back.
    """

    app_id: str | None
    user: str

    def __str__(self) -> str:
        return self.user if self.app_id is None else f"{self.app_id}#{self.user}"

    @classmethod
    def of(cls, text: str) -> "Account":
        """Take an account's text apart at the first ``#``."""
        app_id, number_sign, user = text.partition("#")
        return cls(app_id, user) if number_sign else cls(None, text)


NOBODY = Account(None, "")


# `"fromAccount": "aaf98f...#1001"`, `"fromAccount": "1001"`
def account(value: Any) -> Account:  # JSON
    """Read an account."""
    return Account.of(read_text(value))


# `"tMembers": ["aaf98f...#1001", "aaf98f...#1002"]`; the older nesting `{"member": [...]}` and a single text do no harm
def accounts(value: Any) -> tuple[Account, ...]:  # JSON
    """Read a list of accounts."""
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
    """Read a flag: what is no number other than zero and no word for no is set."""
    if value in (None, "", "0"):  # which is nearly always all there is
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
    """Read a ``msgType``: a member of one of two enums, or the text where it is outside both."""
    text = read_text(value)
    return _KINDS.get(text, text)
