"""Files of rbim in a directory that two users share: the other one can neither read them nor stand in the way."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

OWNER, OTHER = 12345, 65534  # numbers of the two users; neither is root
PATIENCE = 60

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can start processes of two users"
)

# everything is imported before root becomes the user, who may not read where Python is installed
PRELUDE = """
import asyncio, contextlib, csv, encodings.idna, errno, fcntl, json, os, sqlite3, stat, struct, sys, tempfile, time
from pathlib import Path
uid, umask, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
{imports}
def become():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(umask)
"""

FILES = """
import anyio, anyio._backends._asyncio
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.callbacks import SqliteInbox
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.receiver.spool import Spool
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import Database
"""

RBIM = f"""{FILES}
import matplotlib.figure, matplotlib.backends.backend_svg
from rbim import AsyncClient, GroupType
from rbim._support.private_files import replace_private
from rbim.bulk import InviteJob, forget_job, read_report
from rbim.bulk.report.plot import plot_report
from rbim.cli import run
from rbim.cli.jobs import commands, journal_errors, report
from rbim.cli.jobs.files import Files
from rbim.emulator import Emulator
"""


def process(uid, script, *arguments, umask=0o022, imports=""):
    text = PRELUDE.format(imports=imports) + script
    command = [sys.executable, "-c", text, str(uid), str(umask), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(uid, script, *arguments, umask=0o022, imports=""):
    with process(uid, f"become()\n{script}", *arguments, umask=umask, imports=imports) as started:
        try:
            out, err = started.communicate(timeout=PATIENCE)
        finally:
            started.kill()
    assert started.returncode == 0, err
    return out.splitlines()


@pytest.fixture
def shared():
    """A directory such as /tmp: everybody may make files, and remove only their own."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


MAKE = """
folder = Path(arguments[0])
os.chdir(folder)
async def all_files():
    lock = JobLock(folder / "job")
    lock.acquire()
    journal = Journal(folder / "job", clock=SystemClock())
    journal.open()
    async with SqliteInbox(folder / "inbox"), Spool(folder / "spool", MemorySink(), clock=SystemClock(), budget=1.0):
        print("made", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
    journal.close()
    lock.release()
anyio.run(all_files)
"""

REPORTS = """
def write(folder):
    box = Emulator()
    async def job():
        options = {"credentials": box.credentials, "user_name": "admin", "transport": box}
        async with AsyncClient(base_url="http://emulator", **options) as client:
            group = await client.groups.create(name="x", type=GroupType.VIP)
            return await InviteJob(client, journal=folder / "job").run([(group.group_id, "u1"), ("g80000000000404", "u2")])
    report = anyio.run(job)
    files = Files(folder / "job", not_done=folder / "rows.csv", csv=folder / "all.csv", plot=folder / "job.svg")
    files.write(report)
    files.write(report)  # and over those that exist
    with replace_private(folder / "state.json") as stream:  # as the emulator writes its state
        stream.write(json.dumps(box.export()).encode())
with tempfile.TemporaryDirectory() as tried:
    write(Path(tried))  # everything is loaded now, also fonts, which the user may not be able to read
"""

READ = """
for path in sorted(Path(arguments[0]).iterdir()):
    try:
        path.read_bytes()
    except PermissionError:
        print(path.name, "unreadable")
    else:
        print(path.name, "READ")
"""


@contextmanager
def owners_process(script, *arguments, umask=0o022):
    with process(OWNER, f"become()\n{script}", *arguments, umask=umask, imports=FILES) as started:
        try:
            yield started
            if started.poll() is None:
                started.communicate("\n", timeout=PATIENCE)
            assert started.returncode == 0
        finally:
            started.kill()


@pytest.mark.parametrize("umask", [0, 0o777])
def test_the_other_user_reads_no_file_of_a_job_that_runs_nor_of_an_inbox(shared, umask):
    with owners_process(MAKE, shared, umask=umask) as owner:
        assert owner.stdout.readline() == "made\n", owner.stderr.read()
        names = [f"{name}{log}" for name in ("inbox", "job", "spool") for log in ("", "-shm", "-wal")]
        assert lines(OTHER, READ, shared) == [f"{name} unreadable" for name in names]
        assert {path.stat().st_mode & 0o7777 for path in shared.iterdir()} == {0o600}


def test_the_other_user_reads_no_report(shared):
    names = ["all.csv", "job", "job.svg", "rows.csv", "state.json"]
    for name in names[2:]:
        (shared / name).touch(0o644)
        os.chown(shared / name, OWNER, OWNER)
    script = "write(Path(arguments[0]))\nprint('made')"
    assert lines(OWNER, script, shared, umask=0, imports=RBIM + REPORTS) == ["made"]
    assert lines(OTHER, READ, shared) == [f"{name} unreadable" for name in names]
    assert {path.stat().st_mode & 0o7777 for path in shared.iterdir()} == {0o600}


BLOCK = """
folder = Path(arguments[0])
flock = struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 0, 0)
held = []
def hold(path, flags):
    try:
        number = os.open(path, flags, 0o666)
    except OSError as error:
        return print(path.name, errno.errorcode[error.errno], flush=True)
    held.append(number)
    fcntl.fcntl(number, fcntl.F_OFD_SETLK, flock)
    with contextlib.suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    print(path.name, "held", flush=True)
hold(folder / "job-lock", os.O_RDWR | os.O_CREAT)
for flags in (os.O_RDONLY, os.O_RDWR):
    hold(folder / "job", flags)
print("ready", flush=True)
sys.stdin.readline()
"""

TAKE = """
lock = JobLock(Path(arguments[0]) / "job")
lock.acquire()
lock.release()
print(is_locked(Path(arguments[0]) / "job"))
"""


def test_the_other_user_cannot_block_a_job(shared):
    assert lines(OWNER, TAKE, shared, imports=FILES) == ["False"]
    with process(OTHER, f"become()\n{BLOCK}", shared) as other:
        try:
            said = [other.stdout.readline().strip() for _ in range(4)]
            assert said == ["job-lock held", "job EACCES", "job EACCES", "ready"]
            assert lines(OWNER, TAKE, shared, imports=FILES) == ["False"]
        finally:
            other.kill()


PLANT = """
folder, name, kind = Path(arguments[0]), arguments[1], arguments[2]
path = folder / name
if kind == "file":
    path.touch()
    path.chmod(0o666)
elif kind == "pipe":
    os.mkfifo(path)
    path.chmod(0o666)
else:
    path.symlink_to(folder / kind)
"""

OPEN = """
folder, kind = Path(arguments[0]), arguments[1]
async def use():
    if kind == "inbox":
        async with SqliteInbox(folder / "file"):
            pass
    else:
        JobLock(folder / "file").acquire()
        database = Journal(folder / "file", clock=SystemClock())
        database.open()
        database.close()
try:
    anyio.run(use)
except InvalidRequest as error:
    print(error)
else:
    print("used")
"""


@pytest.mark.parametrize(
    ("kind", "name", "planted", "said"),
    [
        ("inbox", "file", "file", "it is a file of another user (uid 65534)"),
        ("lock and journal", "file", "file", "it is a file of another user (uid 65534)"),
        ("lock and journal", "file", "precious", "it is a symbolic link of another user (uid 65534)"),
        ("inbox", "file", "missing", "it is a symbolic link of another user (uid 65534)"),
        ("inbox", "file-wal", "file", "file-wal is in its way: it is a file of another user (uid 65534)"),
        ("lock and journal", "file-shm", "precious", "file-shm is in its way: it is a symbolic link of another user"),
        ("inbox", "file-journal", "missing", "file-journal is in its way: it is a symbolic link of another user"),
    ],
)
def test_a_planted_name_is_refused_and_nothing_is_written_through_it(shared, kind, name, planted, said):
    precious = shared / "precious"
    precious.touch(0o600)
    os.chown(precious, OWNER, OWNER)
    lines(OTHER, PLANT, shared, name, planted, umask=0)
    (told,) = lines(OWNER, OPEN, shared, kind, imports=FILES)
    assert said in told
    assert told.endswith("use a directory of your own")
    assert precious.read_bytes() == b""
    assert not (shared / "missing").exists()
    assert (shared / name).stat(follow_symlinks=False).st_uid == OTHER
    if planted == "file":
        assert (shared / name).read_bytes() == b""


WRITE = """
from rbim._support.private_files import private_stream
try:
    with private_stream(Path(arguments[0]) / "report") as stream:
        stream.write(b"accounts")
except OSError as error:
    print(error.strerror)
else:
    print("written")
"""


@pytest.mark.parametrize("planted", ["precious", "missing", "pipe"])
def test_a_report_is_not_written_through_a_planted_name(shared, planted):
    precious = shared / "precious"
    precious.write_bytes(b"precious")
    precious.chmod(0o600)
    os.chown(precious, OWNER, OWNER)
    lines(OTHER, PLANT, shared, "report", planted, umask=0)
    (told,) = lines(OWNER, WRITE, shared, imports="import rbim._support.private_files")
    of_another = "it is a file of another user (uid 65534): use a directory of your own"
    assert told == (of_another if planted == "pipe" else "Operation not permitted")  # a sticky directory
    assert precious.read_bytes() == b"precious"
    assert not (shared / "missing").exists()
    assert sorted(path.name for path in shared.iterdir()) == ["precious", "report"]


def test_a_predictable_temporary_name_is_not_used(shared):
    script = f"os.close(os.open(Path(arguments[0]) / f'.report.{{os.getpid()}}', os.O_CREAT | os.O_EXCL, 0o600))\n{WRITE}"
    assert lines(OWNER, script, shared, imports="import rbim._support.private_files") == ["written"]
    assert (shared / "report").read_bytes() == b"accounts"
