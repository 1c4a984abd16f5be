"""How rows are written in a file: the format that reading finds out, and that writing back keeps."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import asdict, field, frozen

from rbim.bulk.reading_cells import cleaned, same_name
from rbim.checks import or_none
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import attrs

__all__ = ["ADDED", "Format", "Kind", "codec", "delimiter", "is_kind"]

Kind = Literal["csv", "jsonl", "text"]

ADDED = ("state", "reason")
"""The columns that writing back adds; no other column may be called so."""

_ASCII = "".join(map(chr, range(32, 127))) + "\t\r\n"
_UNDELIMITING = '"\r\n\0 '


def codec(name: str) -> str:
    """Return Python's name of an encoding that rows can be read in line by line. Raises InvalidRequest.

    That is any whose ASCII characters are the bytes of ASCII (UTF-8, GB18030, GBK, Big5, Latin-1, ...), so not UTF-16.
    ``utf-8-sig`` is UTF-8: a byte order mark is recognised in any case.
    """
    try:
        found = codecs.lookup(name).name
        usable = _ASCII.encode(found.removesuffix("-sig")) == _ASCII.encode("ascii")
    except (LookupError, TypeError, ValueError):
        reason = f"encoding: the name of an encoding is needed (utf-8, gb18030), not {name!r}"
        raise InvalidRequest(reason, field="encoding") from None
    if not usable:
        reason = f"encoding: {found} cannot be read line by line; convert the file first (iconv -f {found} -t utf-8)"
        raise InvalidRequest(reason, field="encoding")
    return found.removesuffix("-sig")


def is_kind(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: a kind of file."""
    if value not in get_args(Kind):
        reason = f"{attribute.name}: one of {', '.join(get_args(Kind))} is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def delimiter(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: one character that can stand between cells; no quote, space or line break."""
    if not isinstance(value, str) or len(value) != 1 or value in _UNDELIMITING:
        reason = f"{attribute.name}: one character is needed, no quote, space or line break, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def _name(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not cleaned(value):
        reason = f"{attribute.name}: a text that is not empty is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def _boolean(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        reason = f"{attribute.name}: True or False is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def _line_end(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("\n", "\r\n", "\r"):  # junk need not be hashable
        reason = f"{attribute.name}: a line end is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def _encodes(encoding: str) -> bool:
    try:
        return bool("\ufeff".encode(encoding))
    except UnicodeError:
        return False


@frozen(kw_only=True)
class Format:
    r"""How rows are written in a file.

    ``delimiter`` is CSV's; the columns are those of its header, as they are spelled there, or the keys of JSONL. Where
    ``group`` is given (always for text), the file has no group column and that is the group of every row; where
    ``user_name_column`` is None, it has no column of acting accounts. ``line_end`` is ``\n``, ``\r\n`` or ``\r``.
    Raises InvalidRequest for what cannot be, and for two columns of one name, ``state`` and ``reason`` among them.
    """

    kind: Kind = field(validator=is_kind)
    encoding: str = field(default="utf-8", converter=codec)
    bom: bool = field(default=False, validator=_boolean)
    delimiter: str = field(default=",", validator=delimiter)
    line_end: str = field(default="\n", validator=_line_end)
    group_column: str = field(default="group", validator=_name)
    account_column: str = field(default="account", validator=_name)
    user_name_column: str | None = field(default="user_name", validator=or_none(_name))
    group: str | None = field(default=None, validator=or_none(_name))

    def __attrs_post_init__(self) -> None:
        if self.kind == "text" and self.group is None:
            reason = "group: text has no column of groups; name the group of its rows (--group)"
            raise InvalidRequest(reason, field="group")
        if self.bom and not _encodes(self.encoding):
            reason = f"bom: {self.encoding} has no byte order mark"
            raise InvalidRequest(reason, field="bom")
        columns = [each for each in (self.group_column, self.account_column, self.user_name_column) if each is not None]
        if len({same_name(each) for each in (*columns, *ADDED)}) != len(columns) + len(ADDED):
            reason = (
                f"columns: {', '.join((*columns, *ADDED))} must be different names (the last two are added when writing)"
            )
            raise InvalidRequest(reason, field="account_column")

    def columns(self) -> list[str]:
        """Return the columns that a file of this format has, before those that writing back adds."""
        group = [] if self.group is not None else [self.group_column]
        user_name = [] if self.user_name_column is None else [self.user_name_column]
        return [*group, self.account_column, *user_name]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Format:
        """Read what :meth:`to_json` gave. Raises InvalidRequest for anything else."""
        fields: Any = document  # the validators tell what its values are
        try:
            return cls(**fields)
        except TypeError:
            reason = f"format: no description of a file's format: {document!r}"
            raise InvalidRequest(reason, field="format") from None
