"""A request as a command for a shell: it signs itself, with the variables that ``rbim emulator`` prints."""

from __future__ import annotations

import shlex
from base64 import b64encode
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = ["as_curl"]

SHANGHAI = 8 * 3600  # seconds ahead of UTC, without summer time
_PLAIN = frozenset("\n\t")


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
