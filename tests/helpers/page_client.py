"""A local page of a command, as a program asks it: by its address, with the token behind the ``#``."""

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

PATIENCE = 30.0  # seconds


class PageClient:
    """Asks the page at an address. ``streams`` and ``levels`` are what the last events have said."""

    def __init__(self, address):
        self.address = address
        parts = urlsplit(address)
        self.token = parts.fragment
        self.port = parts.port
        self.base = f"http://127.0.0.1:{parts.port}"
        self.authorization = {"authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=self.base, timeout=PATIENCE, trust_env=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def get(self, path, **query):
        return self.client.get(path, params=query, headers=self.authorization)

    def post(self, path, **document):
        return self.client.post(path, json=document, headers=self.authorization)

    @contextmanager
    def events(self):
        """Give the documents of the events, until the page ends."""
        with self.client.stream("GET", "/events", headers=self.authorization) as answer:
            assert answer.status_code == 200
            yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))
