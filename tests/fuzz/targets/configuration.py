"""The configuration: rbim.toml, the environment, and files with credentials."""

from __future__ import annotations

import atexit
import os
import shutil
import tomllib
import traceback
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rbim.client.settings import KEYS
from rbim.config import load
from rbim.credentials import callback_credentials_from_env
from rbim.dialect_text import NAMES, dialect_document, dialect_from_env, dialect_of, variable_of
from rbim.errors import InvalidRequest
from tests.fuzz.broken import require

WHAT = "`rbim.toml`, the variables of the environment, and the file of callback credentials"
ORACLE = "only InvalidRequest; values as tomllib reads them; no message and no traceback with its variables shows the token"
INSTRUMENT = ["rbim"]
MOST = 700
TOKEN = "canary0123456789abcdef"
NEXT = b"\x1e"  # between the file, the environment and the credentials
VARIABLES = sorted(
    {key.variable for key in KEYS.values() if key.variable} | {variable_of(name) for name in NAMES} | {"RBIM_PROFILE"}
)
OWN = ("RBIM_CONFIG", "RBIM_APP_TOKEN_FILE", "RBIM_CALLBACK_CREDENTIALS_FILE", "RBIM_NATS_CREDS_FILE")
WORDS = [
    *(f"{key} = ".encode() for key in KEYS),
    *(f"{name} = ".encode() for name in NAMES[:12]),
    *(f"{name}=".encode() for name in VARIABLES[:40]),
    *(
        b"[profiles.a]\n",
        b"[dialect]\n",
        b"[profiles.a.dialect]\n",
        b'"$TOKEN"',
        b"'''",
        b'"""',
        b"\n",
        b"$TOKEN",
        b"\\u0000",
        b"1e400",
        NEXT,
    ),
    *(
        b"2026-01-02",
        b"inf",
        b"nan",
        b"[[",
        b"{}",
        b"0x",
        b"1_0",
        b"http://127.0.0.1:8883",
        b"50/s",
        b'{"app_id":"a","app_token":"$TOKEN"}',
    ),
]


def seeds() -> list[bytes]:
    """Return configurations of each kind."""
    profile = b'profile = "a"\n[profiles.a]\nbase_url = "http://127.0.0.1:8883"\napp_id = "app"\napp_token = "$TOKEN"\n'
    return [
        profile,
        profile  # with more keys
        + b'rates = ["50/s"]\nconcurrency = 7\ntimeout = 2.5\n[profiles.a.dialect]\nversion = "2013"\n',
        profile.replace(b"app_token", b"app_tokne"),
        profile.replace(b'"$TOKEN"', b'"$TOKEN'),
        profile.replace(b"app_id = ", b"app_id = 7 # "),
        b"app_token = '$TOKEN'\n",
        b'[profiles."$TOKEN"]\nx = 1\n',
        b'[profiles."$TOKEN"]\n',
        b'profile = "$TOKEN"\n[profiles.a]\n',
        b'profile = "a"\n[profiles."$TOKEN"]\n',
        NEXT + b"RBIM_APP_ID=app\nRBIM_APP_TOKEN=$TOKEN\nRBIM_BASE_URL=http://h\nRBIM_CONCURRENCY=x\n",
        NEXT + b"RBIM_API_VERSION=2013\nRBIM_MEMBERS_SHAPE=nested\nRBIM_DELIVERY_MAX_AGE=1e999\nRBIM_TIMEOUT=-1\n",
        NEXT + b"RBIM_RATES=50/s,600/min\nRBIM_PROFILE=a\n",
        profile
        + NEXT
        + b"RBIM_APP_TOKEN=$TOKEN \xc3\xa9\n"
        + NEXT
        + b'[{"app_id":"a","app_token":"$TOKEN"},{"app_id":"b","app_token":"$TOKEN\\n"}]',
        NEXT + NEXT + b'[{"app_id":"$TOKEN"}]',
        NEXT + NEXT + b'{"$TOKEN":1}',
    ]


_folders: list[Path] = []


def check(data: bytes) -> None:
    """Load one configuration."""
    if not _folders:
        _folders.append(Path(mkdtemp(prefix="rbim-fuzz-")))
        atexit.register(shutil.rmtree, _folders[0])
    file, listed = _folders[0] / "given.toml", _folders[0] / "listed.json"
    content, environment, credentials = ([*data.split(NEXT, 2), b"", b""])[:3]
    content = content.replace(b"$TOKEN", TOKEN.encode())
    file.write_bytes(content)
    listed.write_bytes(credentials.replace(b"$TOKEN", TOKEN.encode()))
    before = dict(os.environ)
    for name in [*VARIABLES, *OWN]:
        os.environ.pop(name, None)
    for line in environment.decode("latin-1").split("\n"):
        name, equals, value = line.partition("=")
        if equals and name in VARIABLES and name not in OWN and "\0" not in value and "_FILE" not in name:
            os.environ[name] = value.replace("$TOKEN", TOKEN) if name == "RBIM_APP_TOKEN" else value
    try:
        _check(file, listed, content)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _check(file: Path, listed: Path, content: bytes) -> None:
    warned: list[str] = []
    # a profile's name is a variable of rbim, also if the token is in it; only messages hide it
    named = any(TOKEN in each for each in _profiles(content))
    config = _tried(lambda: load(file=file, warn=warned.append), "load", frames=not named)
    for text in warned:
        _hides(text, "a warning")
    if config is not None and TOKEN not in (config.profile or ""):  # a profile that is chosen may be named
        _hides(repr(config.values), "a value")
        _tried(config.credentials, "credentials", frames=not named)
        for each in config.missing:
            _hides(each, "what is missing")
        document = tomllib.loads(content.decode("utf-8-sig"))
        given = document.get("profiles", {}).get(config.profile, {}) if config.profile is not None else {}
        for key in ("app_id", "base_url", "user_name", "concurrency", "timeout"):
            variable = KEYS[key].variable
            if key in given and variable is not None and not os.environ.get(variable):
                value = config[key]
                same = value == given[key] or (
                    key == "base_url" and str(value).rstrip("/").lower() == str(given[key]).rstrip("/").lower()
                )
                require(same, f"{key} has another value than the file", value, given[key])
    dialect = _tried(dialect_from_env, "dialect_from_env")
    if dialect is not None:
        require(dialect_of(dialect_document(dialect)) == dialect, "a dialect changes as a document", dialect)
    os.environ["RBIM_CALLBACK_CREDENTIALS_FILE"] = str(listed)
    found = _tried(callback_credentials_from_env, "callback_credentials_from_env")
    if found is not None:
        _hides(repr(found), "credentials")
        require(len(set(found)) == len(found) and found, "credentials twice, or none", len(found))


def _profiles(content: bytes) -> list[str]:
    try:
        profiles = tomllib.loads(content.decode("utf-8-sig")).get("profiles")
    except (ValueError, RecursionError):
        return []
    return [*profiles] if isinstance(profiles, dict) else []


def _tried(call: Any, name: str, *, frames: bool = True) -> Any:
    try:
        return call()
    except InvalidRequest as error:
        _hides(str(error), f"the message of {name}")
        shown = traceback.TracebackException.from_exception(error, capture_locals=True, lookup_lines=False)
        for frame in _frames(shown) if frames else ():
            for variable, value in (frame.locals or {}).items():
                if "/rbim/" in frame.filename:
                    _hides(value, f"the traceback of {name}: {variable} of {frame.name}")
        return None


def _frames(shown: Any) -> Any:
    while shown is not None:
        yield from shown.stack
        shown = shown.__cause__ or shown.__context__


def _hides(text: str, where: str) -> None:
    require(TOKEN not in text, f"{where} shows the token", text)
