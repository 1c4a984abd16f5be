"""``rbim page``: what is no journal and no inbox is refused in one line; the address and the end of a page."""

import signal
import socket
import sqlite3
import sys

import anyio
import pytest

from helpers.page_client import showing
from helpers.page_inbox import LOST, filled
from rbim.cli import run
from rbim.cli.exit_codes import Exit


def test_what_is_no_journal_and_no_inbox_is_refused(bare_environment, tmp_path, capsys):
    bare_environment.chdir(tmp_path)
    (tmp_path / "text").write_text("group,account\n")
    (tmp_path / "empty").touch()
    sqlite3.connect("other").execute("CREATE TABLE t (a)").connection.close()
    for file, cause in {
        "missing": "no such file: give the journal of a job, or an inbox",
        "text": "it is not a journal, or a damaged one",
        "empty": "the journal holds no job: begin one first",
        "other": "it is a database of another application",
    }.items():
        assert run(["page", file]) == Exit.USAGE
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines()), cause in err) == ("", 2, True), err
    anyio.run(filled, "inbox", LOST)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["page", "inbox", "--port", str(port)]) == Exit.USAGE
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_address_alone_is_printed_and_a_signal_ends_the_page(tmp_path, number):
    path = tmp_path / "events.db"
    anyio.run(filled, path, LOST)
    with showing(path) as page:
        assert page.get("/state").json()["counts"]["dead"] == 1
        assert page.client.get(f"/state?token={page.token}").status_code == 404
        page.popen.send_signal(number)
        out, err = page.popen.communicate(timeout=30)
        assert (page.popen.returncode, out, err) == (Exit.DONE, "", "rbim: Ctrl-C ends the page\n")
