"""The end of a response in the bytes of a connection, which parsers of the HTTP libraries do not show."""

from __future__ import annotations

__all__ = ["end_of_response"]

BLANK = b"\r\n\r\n"
LINE = b"\r\n"
STATUS = 9  # where the status begins in ``HTTP/1.1 200``


def end_of_response(data: bytes, length: int, *, chunked: bool | None = None) -> int | None:
    """Return where the first final response in these bytes ends, whose body has this length; -1 if it is unclear.

    None if there are interim responses, and no whole head behind them. ``chunked``: whether the body came in chunks; None
    reads it from the head.
    """
    start = 0
    while (blank := data.find(BLANK, start)) >= 0 and data[start + STATUS : start + STATUS + 1] == b"1":
        start = blank + len(BLANK)  # an interim response
    if blank < 0:
        return None if start else -1
    begin = blank + len(BLANK)
    if chunked is None:
        chunked = begin + length != len(data) and b"\ntransfer-encoding:" in data[start:blank].lower()
    return _end_of_chunks(data, begin) if chunked else begin + length


def _end_of_chunks(data: bytes, place: int) -> int:
    """Return where a body in chunks ends, with its trailers; -1 if its lines do not end as they should."""
    while (line := data.find(LINE, place)) >= 0:
        size = int(data[place:line].partition(b";")[0], 16)  # the parser has read the same
        place = line + len(LINE)
        if not size:
            if data.startswith(LINE, place):
                return place + len(LINE)
            blank = data.find(BLANK, place)
            return blank + len(BLANK) if blank >= 0 else -1
        place += size + len(LINE)
    return -1
