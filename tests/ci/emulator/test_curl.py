"""Requests as curl commands, run by a shell."""

import subprocess

from helpers.credentials import APP_ID, TOKEN
from helpers.tables import each_row
from rbim.emulator.server.page import as_curl

PATH = f"/2013-12-26/Application/{APP_ID}/IM/Group/CreateGroup"


def run(command, **variables):
    """Run a command in a shell with a curl that prints its arguments, each in a line of its own, and its input."""
    fake = 'curl() { printf "%s\\0" "$@"; if printf %s "$*" | grep -q "binary @-"; then cat; fi; }; '
    environment = {"PATH": "/usr/bin:/bin", "RBIM_BASE_URL": "http://h:1", "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
    ran = subprocess.run(["bash", "-c", fake + command], env=environment | variables, capture_output=True, check=True)
    return ran.stdout.split(b"\0")


@each_row(
    "body",
    [
        b"",
        b'{"name": "it\'s"}',
        '{"name": "公告 $HOME `id` \\\\ ! \n\t"}'.encode(),
        b"@/etc/passwd",
        b"\0\xff binary",
        "\u202eabc".encode(),
        b"\x1b[31m",
    ],
)
def test_a_body_reaches_curl_byte_for_byte(body):
    command = as_curl(PATH, body, app_id=APP_ID, stamp="20260102110405")
    arguments = run(command)
    assert arguments[1].startswith(f"http://h:1{PATH}?sig=".encode())
    if b"--data-raw" in arguments:
        assert arguments[arguments.index(b"--data-raw") + 1] == body
    else:
        at = arguments.index(b"--data-binary")
        assert arguments[at + 1] == b"@-"
        assert b"\0".join(arguments[at + 2 :]) == body
    assert command.isprintable() or all(each.isprintable() or each in "\n\t" for each in command)
    assert TOKEN not in command
