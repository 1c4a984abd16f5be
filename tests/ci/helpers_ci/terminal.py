"""A process of rbim at a terminal of its own: what is seen there, and keys that are typed."""

import os
import re
import select
import subprocess
import sys
import time

import pytest

termios = pytest.importorskip("termios", reason="there are no pseudo-terminals")

PATIENCE = 60
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
AT_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from rbim.cli import main; main()"


class Terminal:
    """A process whose terminal we are: ``with Terminal("invite", file, env=...) as shown``."""

    def __init__(self, *tokens, env, columns=80, cwd=None):
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (50, columns))
        command = [sys.executable, "-c", AT_TERMINAL, *map(str, tokens)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = subprocess.Popen(command, **streams, env=env, cwd=cwd, start_new_session=True)
        os.close(theirs)
        self._raw = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._ours)

    def type(self, keys):
        os.write(self._ours, keys)

    @property
    def raw(self):
        """All that came, with its codes."""
        return self._raw.decode(errors="replace")

    @property
    def text(self):
        """All that came, without codes."""
        return ANSI.sub("", self.raw).replace("\r", "")

    def see(self, pattern):
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, self.text):
            assert time.monotonic() < until, self.text
            assert self._read(), f"it ended: {self.text}"

    def end(self):
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self):
        assert select.select([self._ours], [], [], PATIENCE)[0], f"silence after: {self.text}"
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # nobody has it open any more
            return False
        self._raw += found
        return bool(found)
