"""Columns of an input by their names: requested ones, the default ones, and the usual Chinese ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rbim.bulk.input.rows import column_key
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["USUAL", "column_index", "named_columns"]

Role = Literal["group", "account", "user_name"]

_GROUP = ("群", "群组", "群号", "群号码", "群id", "群编号", "群账号", "群帐号", "群组号", "群组id", "群组编号")
_ACCOUNT = ("账号", "帐号", "账户", "帐户", "用户账号", "用户帐号", "成员账号", "成员帐号", "会员账号", "会员帐号")
_USER = ("用户", "用户号", "用户id", "成员", "手机", "手机号", "手机号码", "电话", "电话号码", "联系电话")
_ACTING = ("操作账号", "操作帐号", "执行账号", "执行帐号", "邀请人账号", "邀请人帐号")

USUAL = {"group": frozenset(_GROUP), "account": frozenset(_ACCOUNT + _USER), "user_name": frozenset(_ACTING)}
"""Chinese column names that are found without a flag, besides ``group``, ``account`` and ``user_name``."""


def named_columns(names: Sequence[str], requested: str | None, role: Role) -> list[int]:
    """Return the indexes of the columns that may have a role.

    They have the requested name; without one the default name, or else a usual one. Case, and space around a name, do not
    count; in a usual name no space, hyphen or underscore does.
    """
    found = [index for index, name in enumerate(names) if column_key(name) == column_key(requested or role)]
    if found or requested is not None:
        return found
    return [index for index, name in enumerate(names) if _usual_key(name) in USUAL[role]]


def _usual_key(name: str) -> str:
    return "".join(column_key(name).replace("_", " ").replace("-", " ").split())


def column_index(names: Sequence[str], requested: str | None, role: Role, *, needed: bool) -> int | None:
    """Return the index of the column for a role, None if there is none and none is needed. Raises InvalidRequest."""
    indexes = named_columns(names, requested, role)
    if len(indexes) == 1:
        return indexes[0]
    if not indexes and not needed and requested is None:
        return None
    flag = f"--{role.replace('_', '-')}-column"
    alone = " or --group" if role == "group" and not indexes else ""
    which = f"no column {requested or role!r}"
    if indexes:
        which = f"{len(indexes)} columns {requested or role!r}, namely {', '.join(repr(names[index]) for index in indexes)},"
    advice = f"name the column with {flag}{alone}"
    if len({column_key(names[index]) for index in indexes}) == 1:
        which, advice = f"{len(indexes)} columns have the name {names[indexes[0]]!r}", "rename or remove one of them"
    raise InvalidRequest(f"header: {which} among {', '.join(map(repr, names))}: {advice}", field=f"{role}_column")
