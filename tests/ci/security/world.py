"""A platform that plants secrets: it remembers what it was sent, and may quote it in its answers."""

import base64
import io
import json
import logging
import os
import pickle
import sys
import traceback
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qsl, quote

from helpers.processes import CLEAN, PATIENCE, running
from helpers.serving import served
from rbim import Credentials
from rbim.cli.entry_point import run
from rbim.emulator import Emulator
from rbim.emulator.server.control import Control

APP_ID = "aaf98f8947b5d6c80147b8a2b7c30777"
SECRETS = {
    "application token": "3e5c77d1b9aa4f0e86f1c2d4a7b80911",
    "older callback token": "9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d",
    "token of another application": "c0ffee5eed1234567890abcdefbadf00",
    "token under a wrong key": "5c9f2ab17e6d4c3f9a8b7c6d5e4f3a2b",
    "password of the proxy": 'pr0xy/pa"ss@w\u00f6rd%41',
    "password in the base URL": "b4se-Url-pa55w0rd",
    "token of an unrelated variable": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
}
CREDENTIALS = Credentials(app_id=APP_ID, app_token=SECRETS["application token"])
PROXY_PASSWORD = quote(SECRETS["password of the proxy"], safe="")


class World:
    """The platform, its address, and the secrets planted so far: those above, and every signature that was sent."""

    def __init__(self, folder):
        self.folder = folder
        self.secrets = dict(SECRETS)
        self.emulator = Emulator(credentials=CREDENTIALS, accounts=None)
        self._control = Control(self.emulator)
        self._numbers = iter(range(1_000_000))
        self._open = ExitStack()

    def path(self, name):
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder / name

    async def application(self, scope, receive, send):
        """The emulator with its control interface; below /echo, a platform that quotes the request in its answer."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode()))
        signed = {"sig": query.get("sig"), "Authorization": headers.get("authorization")}
        for name, value in signed.items():
            if value and value not in self.secrets.values():
                self.secrets[f"{name} {len(self.secrets)}"] = value
        if not scope["path"].startswith("/echo"):
            await self._control(scope, receive, send)
            return
        url = f"{scope['path']}?{scope['query_string'].decode()}"
        said = f"refused {url} with {headers.get('authorization')}"
        status, document = {"/echo/html": (502, None), "/echo/redirect": (302, None)}.get(
            "/".join(scope["path"].split("/")[:3]),
            (200, {"statusCode": "900407", "statusMsg": said, "more": {said: [said]}}),
        )
        body = f"<p>{said}</p>".encode() if document is None else json.dumps(document).encode()
        start = {"type": "http.response.start", "status": status, "headers": [(b"location", url.encode())]}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    @contextmanager
    def open(self):
        async def application(scope, receive, send):  # uvicorn takes a method for an application of ASGI 2
            await self.application(scope, receive, send)

        with self._open, served(application) as self.url:
            yield self

    @property
    def environment(self):
        return {
            "RBIM_BASE_URL": self.url,
            "RBIM_APP_ID": APP_ID,
            "RBIM_APP_TOKEN": SECRETS["application token"],
            "RBIM_USER_NAME": "admin",
            "RBIM_DEADLINE": "0.5",
            "AWS_SECRET_ACCESS_KEY": SECRETS["token of an unrelated variable"],
        }

    def environments(self):
        """Yield the environments of a command: one that works, and those that fail in each known way."""
        works = self.environment
        host = self.url.removeprefix("http://")
        password = SECRETS["password in the base URL"]
        listed = [
            {"app_id": APP_ID, "app_token": SECRETS["older callback token"]},
            {"app_id": "other", "app_token": SECRETS["token of another application"]},
        ]
        several, broken = self.path("credentials.json"), self.path("broken.json")
        several.write_text(json.dumps(listed))
        broken.write_text(json.dumps(listed)[:-1] + ", 7")
        yield "works", works | {"RBIM_CALLBACK_CREDENTIALS_FILE": str(several)}
        yield "quoted", works | {"RBIM_BASE_URL": f"{self.url}/echo"}
        yield "quoted in HTML", works | {"RBIM_BASE_URL": f"{self.url}/echo/html"}
        yield "redirected", works | {"RBIM_BASE_URL": f"{self.url}/echo/redirect"}
        yield "refused", works | {"RBIM_BASE_URL": "http://127.0.0.1:1"}
        yield "base URL with a password", works | {"RBIM_BASE_URL": f"http://user:{password}@{host}"}
        yield "proxy", works | {"RBIM_BASE_URL": "http://im.example", "HTTP_PROXY": self.proxy(host)}
        yield "closed proxy", works | {"RBIM_BASE_URL": "https://im.example", "HTTPS_PROXY": self.proxy("127.0.0.1:1")}
        yield "broken credentials", works | {"RBIM_CALLBACK_CREDENTIALS_FILE": str(broken)}
        yield "token with a blank", works | {"RBIM_APP_TOKEN": f"{SECRETS['application token']} x"}
        yield "token as its file", {**works, "RBIM_APP_TOKEN": "", "RBIM_APP_TOKEN_FILE": SECRETS["application token"]}

    def proxy(self, host):
        self.secrets["credentials of the proxy"] = base64.b64encode(
            f"user:{SECRETS['password of the proxy']}".encode()
        ).decode()
        return f"http://user:{PROXY_PASSWORD}@{host}"


@contextmanager
def environment(values):
    kept = {name: value for name, value in CLEAN.items() if not name.lower().endswith("_proxy")}
    with mock.patch.dict(os.environ, kept | values, clear=True):
        yield


@contextmanager
def captured():
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        yield lambda: out.buffer.getvalue() + err.buffer.getvalue()


def command(*words):
    """Run a command line in this process, and return what it writes to both streams. Its retries come without a pause."""
    no_pause = mock.patch("random.random", return_value=0.0)
    with no_pause, captured() as written, suppress(SystemExit):
        run([str(word) for word in words])
    return written()


def process(*words, values, act=None):
    """Run a command until it is interrupted; do ``act`` with its first line, if that is an address; return what it wrote.

    Without ``act`` the first line is one on standard error.
    """
    command = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", *words]
    with running(*command, env=CLEAN | values, encoding=None) as popen:
        first = (popen.stderr if act is None else popen.stdout).readline()
        if act is not None and first.startswith(b"http"):
            act(first.decode().strip())
        popen.terminate()
        out, err = popen.communicate(timeout=PATIENCE)
    return first + out + err


HERE = str(Path(__file__).parent)


def shown(error):
    """Return everything that logs and error trackers show of an exception and its causes, with the locals of all frames.

    Frames of the list of outputs itself are left out: they hold what they plant.
    """
    texts, waiting, seen = [], [error], set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        texts += ["".join(traceback.format_exception_only(each)), str(each), *map(_repr, (each, each.args, vars(each)))]
        for frame, line in traceback.walk_tb(each.__traceback__):
            if not frame.f_code.co_filename.startswith(HERE):
                texts.append(f"{frame.f_code.co_filename}:{line}")
                texts += [f"{name} = {_repr(value)}" for name, value in frame.f_locals.items()]
    with suppress(Exception):
        texts.append(repr(pickle.dumps(error)))
    return "\n".join(texts)


def _repr(value):
    try:
        return repr(value)
    except Exception as error:  # of an object that is not made yet
        return f"<{type(error).__name__}>"


class _Keeping(logging.Handler):
    """Keeps the text of every record, and its fields."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record):
        self.lines += [self.format(record), repr(record.args)]


@contextmanager
def all_logs():
    """Give a list of the lines of every logger of the process, at DEBUG, while the block runs."""
    root, keeping = logging.getLogger(), _Keeping()
    before = root.level
    root.addHandler(keeping)
    root.setLevel(logging.DEBUG)
    try:
        yield keeping.lines
    finally:
        root.removeHandler(keeping)
        root.setLevel(before)
