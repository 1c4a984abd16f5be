"""The CSV report of a job, opened in a spreadsheet program, saved, and used as input again."""

import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.job_commands import STRANGER, invitations, members, write_csv
from rbim.bulk import RowFile
from rbim.cli.exit_codes import JobExit

pytestmark = pytest.mark.skipif(
    shutil.which("soffice") is None, reason="needs LibreOffice, of the Debian package libreoffice-calc"
)

ACCOUNTS = [
    *("1001", "0138", "+8613800138000", "13800138000", "123456789012345678", "1.50", "1E5", "1/2", "12:30", "50%", "true"),
    *("mar1", "2024-01-02", "=1+1", "-x", "@x", "a;=b", "张三", 'a"b', "a,b", "NULL", "'quoted'", "00", "-5", "1 2"),
]


def saved(path, kind):
    """Return the file that LibreOffice makes of another one when it opens and saves it."""
    folder = path.parent / f"saved as {kind.partition(':')[0]}"
    profile = f"-env:UserInstallation={(path.parent / 'profile').absolute().as_uri()}"
    # what its dialog proposes for a file with a byte order mark: commas, quotes, UTF-8
    command = ["soffice", profile, "--headless", "--infilter=CSV:44,34,76", "--convert-to", kind]
    command += ["--outdir", str(folder), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    (made,) = folder.iterdir()
    return made


@pytest.mark.ci
def test_a_report_that_a_spreadsheet_program_saves_has_the_same_accounts(platform, cli, group):
    write_csv("members.csv", [*((group, account) for account in ACCOUNTS), (group, STRANGER)])
    code, *_ = cli("invite", "members.csv", "--allow-damaged", "--chunk", "1")
    assert code == JobExit.INCOMPLETE
    assert cli("job", "report", "members.csv.invite.journal", "--csv", "report.csv")[0] == JobExit.DONE
    invited = members(platform, group)
    for kind in ("csv:Text - txt - csv (StarCalc):44,34,76", "xlsx", "ods"):
        file = saved(Path("report.csv"), kind)
        with RowFile(file, allow_damaged=True) as rows:
            assert [(row.group, row.account) for row in rows] == [(group, each) for each in (*ACCOUNTS, STRANGER)], kind
        platform.requests.clear()
        code, _, err = cli("invite", str(file), "--allow-damaged", "--chunk", "1")
        assert (code, err.count("unusable")) == (JobExit.INCOMPLETE, 0)
        assert members(platform, group) == invited
        assert len(invitations(platform)) == len(ACCOUNTS) + 1
