# noqa: INP001  # a folder of pictures is no package
"""Pictures of commands in a terminal: run against the emulator on a pseudo-terminal, drawn by rich. POSIX only."""

from __future__ import annotations

import fcntl
import html
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from rbim import AsyncClient, Credentials, GroupType

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

__all__ = ["WIDTH", "demo", "drawn", "invite", "seen"]

WIDTH = 100
PATIENCE = 120.0
FOLDER = "/srv"  # shown in the place of a temporary one
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Noto Sans Mono CJK SC', monospace"
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\r\n]")
WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\uffef]+")
ASPECT = 0.61
"""The width of a letter by its height, as rich has it."""


def demo() -> str:
    """Return the picture of ``rbim demo``."""
    return drawn("rbim demo", seen(["demo"], {}))


def invite() -> str:
    """Return the picture of ``rbim invite``: 3,000 accounts, of whom a few cannot be invited."""
    command = "rbim invite members.csv --rate 12/s"
    with TemporaryDirectory() as folder, _emulator() as environment:
        rows = anyio.run(_prepare, environment)
        (Path(folder) / "members.csv").write_text(rows, encoding="utf-8")
        return drawn(command, seen(command.split()[1:], environment, folder, code=3).replace(folder, FOLDER))


async def _prepare(environment: Mapping[str, str]) -> str:
    """Make two groups, and return the rows of an input for them."""
    credentials = Credentials(app_id=environment["RBIM_APP_ID"], app_token=environment["RBIM_APP_TOKEN"])
    rows = ["group,account,城市"]
    async with AsyncClient(base_url=environment["RBIM_BASE_URL"], credentials=credentials) as client:
        for name, type_, count in (("产品公告", GroupType.VIP, 1990), ("客户交流", GroupType.PAID_1000, 1010)):
            group = await client.groups.create(name=name, type=type_)
            rows += [f"{group.group_id},{10_000 + number},上海" for number in range(count)]
    return "\n".join([*rows, f"{rows[-1].split(',')[0]},,北京", ""])


@contextmanager
def _emulator() -> Generator[dict[str, str]]:
    """Serve an emulator on a free port, and yield the environment variables of its clients."""
    credentials = {"RBIM_APP_ID": "demo", "RBIM_APP_TOKEN": "demo"}
    command = [*_rbim(), "emulator", "--port", "0"]
    with subprocess.Popen(  # noqa: S603  # ourselves
        command, env=_environment(credentials), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            yield credentials | {"RBIM_BASE_URL": process.stdout.readline().strip()}
        finally:
            process.terminate()


def _rbim() -> list[str]:
    return [sys.executable, "-c", "from rbim.cli import main; main()"]


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: that of this process, without variables that change the output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RBIM_", "COLUMNS", "LINES"))}
    kept.pop("NO_COLOR", None)
    return kept | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1", **variables}


def seen(command: Sequence[str], environment: Mapping[str, str], folder: str | None = None, *, code: int = 0) -> str:
    """Run ``rbim`` with a terminal of 100 columns; return what stands there at the end, colours included.

    Raises RuntimeError where it does not end with ``code``.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    with subprocess.Popen(  # noqa: S603  # ourselves
        [*_rbim(), *command],
        cwd=folder,
        env=_environment(environment),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # EIO: the other end is closed
            while part := os.read(ours, 65536):
                written += part
        os.close(ours)
        ended = process.wait(PATIENCE)
    screen = _screen(written.decode())
    if ended != code:
        raise RuntimeError(f"rbim {' '.join(command)}: exit code {ended}\n{screen}")
    return screen


def _screen(written: str) -> str:
    """Follow a terminal: lines that are written over, and a cursor that goes up."""
    lines, row, begun = [""], 0, 0
    for control in CONTROL.finditer(written):
        lines[row] += written[begun : control.start()]
        begun = control.end()
        match control[0][-1]:
            case "\n":
                row += 1
                lines += [""] * (row >= len(lines))
            case "A":
                row = max(0, row - int(control[1] or 1))
            case "K":
                lines[row] = ""
            case "m":
                lines[row] += control[0]
            case _:  # the start of a line, the cursor's look
                pass
    lines[row] += written[begun:]
    return "\n".join(lines).rstrip()


def drawn(command: str, screen: str) -> str:
    """Draw what a command leaves on a terminal, below the line that it was typed into."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    text = Text.from_ansi(screen)
    text.highlight_regex(WIDE, Style(meta={"wide": True}))  # a text of its own, so that it is aligned for itself
    for line in text.split("\n"):
        console.print(*line.divide(_breaks(line.plain)), sep="\n", soft_wrap=True)
    console.print()
    return _mended(console.export_svg(title="", unique_id="terminal", code_format=_FORMAT, font_aspect_ratio=ASPECT))


def _breaks(line: str) -> list[int]:
    """Return where a terminal breaks a line: wherever its cells are full."""
    found: list[int] = []
    cells = 0
    for at, letter in enumerate(line):
        cells += cell_len(letter)
        if cells > WIDTH:
            found.append(at)
            cells = cell_len(letter)
    return found


_FORMAT = re.sub(r" *@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, monospace", FONTS)
"""Rich's own, without fonts from elsewhere."""


def _mended(svg: str) -> str:
    """Give each text the width of its cells: rich counts characters, of which a Chinese one takes two cells."""

    def whole(match: re.Match[str]) -> str:
        cells = cell_len(html.unescape(match[3]))
        return f'{match[1]}textLength="{cells * 20 * ASPECT:g}" lengthAdjust="spacingAndGlyphs"{match[2]}>{match[3]}</text>'

    svg = re.sub(r"<text [^>]*>\s*</text>", "", svg)  # line breaks
    svg = re.sub(r' clip-path="url\(#terminal-line-\d+\)"', "", svg)
    svg = re.sub(r'<clipPath id="terminal-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<text [^>]*?)textLength="[^"]*"([^>]*)>([^<]*)</text>', whole, svg)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
