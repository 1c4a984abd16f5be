"""The search for planted secrets finds each of them, in each spelling: a search that finds nothing proves nothing."""

import json
import quopri
from base64 import b64encode, urlsafe_b64encode
from textwrap import fill, wrap
from urllib.parse import quote, quote_plus

from rich.console import Console
from rich.panel import Panel
from security.spellings import spelled
from security.world import SECRETS


def panel(text):
    console = Console(width=24, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(Panel(text))
    console.file.close()
    return console.export_text()


WRITTEN = {
    "raw": lambda text: f"token {text}.",
    "lower": str.lower,
    "upper": str.upper,
    "in bytes that are no text": lambda text: b"\xff\x00" + text.encode() + b"\xfe",
    "base64": lambda text: b64encode(text.encode()),
    "base64 behind others": lambda text: b64encode(b"a:" + text.encode() + b":b"),
    "base64 behind one": lambda text: b64encode(b"a" + text.encode() + b"\n"),
    "base64 for URLs": lambda text: urlsafe_b64encode(b"u" + text.encode()),
    "base64 in lines": lambda text: "\n".join(wrap(b64encode(b"xyz" + text.encode() * 3).decode(), 20)),
    "quoted": lambda text: f"/p?sig={quote(text, safe='')}&x=1",
    "quoted for a query": quote_plus,
    "quoted twice": lambda text: quote(quote(text, safe=""), safe=""),
    "hex": lambda text: text.encode().hex(" ").replace(" ", ""),
    "repr": lambda text: repr({"token": text}),
    "repr of bytes": lambda text: repr(text.encode()),
    "JSON": lambda text: json.dumps({"token": text}),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "UTF-16": lambda text: text.encode("utf-16"),
    "reversed": lambda text: text[::-1],
    "over a fold": lambda text: fill(f"a line with {text}", 24, break_long_words=True),
    "over an indented fold": lambda text: f"{text[:9]}\r\n    {text[9:]}",
    "quoted-printable": lambda text: quopri.encodestring(b"x" * 60 + text.encode()) if text.isalnum() else text,
    "in a panel": panel,
    "in a literal of two lines": lambda text: f"('{text[:8]}'\n '{text[8:]}')",
}


def test_each_secret_is_found_in_each_spelling_and_no_other():
    found = {
        (name, how): {each for each, _ in spelled(SECRETS, write(secret))}
        for name, secret in SECRETS.items()
        for how, write in WRITTEN.items()
    }
    assert {key: names for key, names in found.items() if names != {key[0]}} == {}


def test_an_output_without_a_secret_has_none():
    assert spelled(SECRETS, "Secret(***) sig=*** 3e5c77d1 nothing else\n" * 100) == []
    assert spelled(SECRETS, b"") == []
