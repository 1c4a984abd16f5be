"""``rbim page FILE`` in a process of its own, and its page as a program asks it: with the token behind the ``#``."""

import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from helpers.processes import running

PATIENCE = 30.0  # seconds
COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "page"]


class PageClient:
    """Asks the page at an address."""

    def __init__(self, address):
        self.address = address
        parts = urlsplit(address)
        self.token = parts.fragment
        self.base = f"http://127.0.0.1:{parts.port}"
        self.authorization = {"authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=self.base, timeout=PATIENCE, trust_env=False)

    def get(self, path, **query):
        return self.client.get(path, params=query, headers=self.authorization)

    def post(self, path, **document):
        return self.client.post(path, json=document, headers=self.authorization)


@contextmanager
def showing(path, *flags):
    with running(*COMMAND, path, *flags, patience=10 * PATIENCE) as popen:
        address = popen.stdout.readline().strip()
        assert address, popen.stderr.read()
        page = PageClient(address)
        page.popen = popen
        with page.client:
            yield page
