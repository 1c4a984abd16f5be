"""The code blocks of README.md and docs/*.md: what they are, why some are not run, and how the others are."""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from attrs import frozen

from helpers.paths import DOCS, ROOT
from helpers.processes import CLEAN, PATIENCE, ran
from helpers.sockets import free_port

FENCE = re.compile(r"^( *)```(\S+)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
ANSWERED = re.compile(r"\d\d:\d\d:\d\d\.\d{3}  ")  # a line of the emulator for a request
REASON = re.compile(r"<!-- not run: (.+?) -->\s*\Z", flags=re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)


@frozen
class Block:
    """One fenced block: its page (a path from the root), the heading it stands under, its language, its text.

    ``not_run`` is the reason given in a comment above it, ``<!-- not run: ... -->``; None where there is none.
    """

    page: str
    title: str
    language: str
    text: str
    not_run: str | None

    def __str__(self):
        return f"{self.page}: {self.title}"


def blocks_of(page, *languages):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        before = text[: fence.start()]
        headings = HEADING.findall(re.sub(FENCE, "", before))
        reason = REASON.search(before)
        found.append(Block(page, headings[-1], fence[2], fence[3], reason[1] if reason else None))
    return [block for block in found if not languages or block.language in languages]


def docs_module(name, folder=DOCS):
    """Import a module of the docs folder, or of one in it: they are no packages."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def run_program(program, where, environment=None):
    command = [sys.executable, "-W", "error", "-X", "utf8", "-c", program]
    return run(command, where, environment)


def run(command, where, environment=None):
    done = ran(*command, cwd=where, env=CLEAN | {"PYTHONUTF8": "1"} | (environment or {}))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_newcomer(commands, where):
    """Run shell commands that start an emulator and wait for it, as somebody at a prompt would; return what they print.

    On a free port. A person waits two seconds; a busy machine waits until somebody listens, or nobody is left to do so.
    """
    port = str(free_port())
    listens = f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null"
    wait = f"sleep() {{ until {listens}; do kill -0 $! && command sleep 0.05 || return 1; done; }}"
    script = "\n".join([wait, *commands, "kill $!", "wait"])
    if "--port" not in script:
        script = script.replace("rbim emulator", "rbim emulator --port 8883")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with subprocess.Popen(
        ["bash", "-euc", script.replace("8883", port)],
        cwd=where,
        env={"PATH": path, "PYTHONUTF8": "1", "no_proxy": "*", "HOME": str(where)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as shell:
        try:
            out, err = shell.communicate(timeout=PATIENCE)
        finally:
            if shell.returncode is None:
                os.killpg(shell.pid, signal.SIGKILL)
    others = [line for line in err.splitlines() if not ANSWERED.match(line)]
    assert (shell.returncode, others) == (0, [])
    return out
