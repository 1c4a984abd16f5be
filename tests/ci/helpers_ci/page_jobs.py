"""A command of a job with ``--page`` in a process of its own, and its page."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

from helpers.page_client import PATIENCE, PageClient

COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()"]


class Running:
    """The process; ``page`` asks its page. ``printed`` are the lines of standard error so far."""

    def __init__(self, popen, address, printed):
        self.popen = popen
        self.page = PageClient(address)
        self.printed = printed

    def ended(self):
        """Wait for the end; return the exit code, standard output and standard error."""
        out = self.popen.stdout.read()
        code = self.popen.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code, out, "".join(self.printed)


@contextmanager
def running(*words, **environment):
    """Start a command with ``--page``, and give it when the page is there."""
    command, pipe = [*COMMAND, *map(str, words), "--page"], subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | environment, stdout=pipe, stderr=pipe, encoding="utf-8") as popen:
        watchdog = threading.Timer(2 * PATIENCE, popen.kill)
        watchdog.start()
        try:
            printed, address = [], None
            while address is None:
                line = popen.stderr.readline()
                assert line, "".join(printed)
                printed.append(line)
                if line.startswith("page: "):
                    address = line.removeprefix("page: ").strip()
            found = Running(popen, address, printed)
            found.reader = threading.Thread(target=lambda: printed.extend(popen.stderr))
            found.reader.start()
            with found.page:
                yield found
        finally:
            watchdog.cancel()
            popen.kill()
