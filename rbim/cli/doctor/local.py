"""Checks that need no network: versions, extras, configuration, callbacks."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rbim import __version__
from rbim._support.text import install_command
from rbim.cli.context import HOW_TO_CONFIGURE
from rbim.cli.doctor.check import Check, State
from rbim.dialect_text import flag_of
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.config.config import Config, Setting

__all__ = ["callbacks", "files", "installed", "nats_files", "settings", "versions"]

EXTRAS = {
    "cli": ("cyclopts", "rich"),
    "server": ("uvicorn",),
    "fast": ("httptools", "orjson"),
    "aiohttp": ("aiohttp",),
    "httpx2": ("httpx2",),
    "nats": ("nats",),
    "otel": ("opentelemetry",),
    "plot": ("matplotlib",),
}
"""The modules of each extra."""

NATS_KEYS = ("nats_creds_file", "nats_ca_file", "nats_cert_file", "nats_key_file")
PACKAGES = ("httpx", "anyio", "attrs", "cattrs")


def versions() -> Check:
    """Return the versions of rbim, Python and the packages that rbim always needs."""
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    python = f"Python {platform.python_version()} on {platform.system()}"
    return Check("versions", State.OK, f"rbim {__version__}, {python}, {packages}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # such as in a zip file
        return "of unknown version"


def installed() -> Check:
    """Return which extras are installed."""
    there = [extra for extra, modules in EXTRAS.items() if all(find_spec(module) is not None for module in modules)]
    absent = [extra for extra in EXTRAS if extra not in there]
    text = f"installed: {', '.join(there)}"
    return Check("extras", State.OK, f"{text}; not installed: {', '.join(absent)}" if absent else text)


def files(config: Config) -> Check:
    """Return the profile and its files, and the variables and flags that are set."""
    found = ", ".join(str(place.path) for place in config.places if place.exists)
    of = f"profile {config.profile} of {found}" if config.profile else f"files: {found or 'none'}"
    variables = sorted({s.source.variable for s in config.values.values() if s.source.variable})
    given = sorted({flag_of(s.key.rpartition(".")[2]) for s in config.values.values() if s.source.argument})
    parts = [of, f"variables: {', '.join(variables) or 'none'}", *([f"flags: {', '.join(given)}"] if given else [])]
    return Check("configuration", State.OK, "; ".join(parts))


def settings(config: Config) -> Check:
    """Return the address and the application, or the settings that are missing."""
    if config.missing:
        return Check("settings", State.FAIL, "; ".join(config.missing), HOW_TO_CONFIGURE)
    address, app_id = config.values["base_url"], config.values["app_id"]
    text = f"base URL {address.value} ({_source(address)}), application {app_id.value} ({_source(app_id)})"
    return Check("settings", State.OK, text)


def _source(setting: Setting) -> str:
    return f"flag {flag_of(setting.key)}" if setting.source.argument else str(setting.source)


def callbacks(config: Config) -> Check:
    """Return how many applications' signatures on callbacks are accepted."""
    try:
        found = config.callback_credentials()
    except InvalidRequest as error:
        if config["callback_credentials_file"] is None:
            return Check("callbacks", State.SKIP, "they need the credentials of the application, or a file with others")
        return Check("callbacks", State.FAIL, error.message, 'The file holds [{"app_id": "...", "app_token": "..."}]')
    names = ", ".join(dict.fromkeys(each.app_id for each in found))
    tokens = f"{len(found)} token{'s' * (len(found) != 1)}"
    return Check("callbacks", State.OK, f"signatures of {names} are accepted ({tokens})")


def nats_files(config: Config) -> Check:
    """Return whether the files for NATS servers are there, and the extra, if they are configured."""
    given = {key: Path(config[key]) for key in NATS_KEYS if config[key] is not None}
    if not given:
        return Check("nats", State.SKIP, "no files are configured; `rbim doctor --via nats://HOST/NAME` checks servers")
    if find_spec("nats") is None:
        return Check("nats", State.FAIL, f"{', '.join(given)} need nats-py", f"Install it with: {install_command('nats')}")
    from rbim.jetstream.settings import NatsSettings

    names = {"nats_creds_file": "credentials_file", "nats_ca_file": "ca_file"}
    names |= {"nats_cert_file": "cert_file", "nats_key_file": "key_file"}
    try:
        NatsSettings(**{names[key]: path for key, path in given.items()}).tls(())
        for path in given.values():
            path.read_bytes()
    except (InvalidRequest, OSError) as error:
        return Check("nats", State.FAIL, getattr(error, "message", str(error)), "`rbim config show` shows the names")
    return Check("nats", State.OK, f"files can be read: {', '.join(given)}")
