"""A server that cannot be used, in each way: `callback serve` takes deliveries into its overflow file, commands say why."""

import signal
import subprocess
import time

import pytest
from anyio import fail_after, sleep

from helpers.callback_process import COMMAND, event, serving
from helpers.deliveries import delivery
from helpers.postgres import needs_postgres, server, sql
from helpers.processes import CLEAN, ran
from helpers.waiting import until
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.errors import InvalidRequest
from rbim.postgres import PostgresInbox
from rbim.postgres.database import _cut

pytestmark = needs_postgres

FULL = "could not extend file: No space left on device"
RAISING = """CREATE FUNCTION "{name}".refuse() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF new.conversation LIKE ''%{of}'' THEN RAISE ''{text}'' USING ERRCODE = ''{code}''; END IF; RETURN new; END';
    CREATE TRIGGER refuse BEFORE INSERT ON "{name}".event FOR EACH ROW EXECUTE FUNCTION "{name}".refuse()"""


def status(address):
    return ran(*COMMAND, "status", address, env=CLEAN)


CASES = {
    "no permission": ("poor", [], "grant this user CREATE"),
    "wrong password": ("locked", [], "check the user and the password"),
    "TLS wanted": ("covert", [], "add ?sslmode=require"),
    "read-only": ("reader", ["CREATE SCHEMA {name} AUTHORIZATION reader"], "give the address of the primary"),
    "a table missing": ("tester", ["DROP TABLE {name}.event CASCADE"], "has other tables, or is being restored"),
    "another version": ("tester", ["UPDATE {name}.meta SET version = 9"], "use the other rbim"),
    "full": ("tester", [RAISING.format(name="{name}", of="", text=FULL, code="53100")], "free some disk space"),
}


@pytest.fixture(scope="module")
def strict_server():
    """One that wants passwords, encryption, or nothing written."""
    with server() as made:
        rules = made.folder / "data" / "pg_hba.conf"
        own = (
            "host all locked 127.0.0.1/32 scram-sha-256\nhostssl all covert 127.0.0.1/32 trust\nhost all covert all reject\n"
        )
        rules.write_text(own + rules.read_text())
        made.process.send_signal(signal.SIGHUP)
        roles = ["poor", "covert", "reader", "locked PASSWORD 'right'"]
        sql(made.address, *(f"CREATE USER {role}" for role in roles))
        sql(made.address, "ALTER ROLE reader SET default_transaction_read_only = on")
        yield made


@pytest.mark.parametrize("case", CASES)
async def test_serving_goes_on_and_commands_say_why(strict_server, tmp_path, case):
    user, statements, words = CASES[case]
    name = case.replace(" ", "_").replace("-", "_").lower()
    if user == "tester":
        async with PostgresInbox(strict_server.address, name=name) as inbox:
            await inbox.counts()
    sql(strict_server.address, *(each.replace("{name}", name) for each in statements))
    address = strict_server.address.replace("tester@", f"{user}:not-the-one@") + f"#{name}"
    if case not in {"full", "no permission"}:  # it can still be read; there is none
        said = status(address)
        assert (said.returncode, said.stdout) == (2, "")
        assert words in said.stderr
        assert said.stderr.count("\n") == 1
        assert "not-the-one" not in said.stderr
    with serving(address, "--print", "--spool", str(tmp_path / "spool")) as process:
        for number in range(10):  # of which the first may come before it is connected
            assert process.post(event(msgId=f"m{number}"))[0] == 200
            await sleep(0.1)
        began = time.monotonic()
        code, _, err = process.stop(signal.SIGINT)
        assert time.monotonic() - began < 5  # two seconds, but for the machine
    assert code == 0
    assert words in err
    assert "Traceback" not in err
    assert "not-the-one" not in err


def done_in(address):
    ((done,),) = sql(address, "SELECT count(*) FROM copies.event WHERE state = 1")
    return done


async def test_what_came_meanwhile_is_handled_once_the_server_is_there(tmp_path):
    with server() as made:
        made.stop()
        with serving(made.address, "--print", "--spool", str(tmp_path / "spool")) as process:
            for number in range(3):
                assert process.post(event(msgId=f"m{number}"))[0] == 200
            made.start()
            assert [process.line()["msgId"] for _ in range(3)] == ["m0", "m1", "m2"]
            await until(lambda: done_in(made.address) == 3)  # else they would be handled again after the death
            made.process.send_signal(signal.SIGSTOP)
            made.stop(signal.SIGKILL)
            assert process.post(event(msgId="m3"))[0] == 200
            made.start()
            assert process.line()["msgId"] == "m3"
            assert process.stop()[0] == 0


async def test_what_the_database_can_never_store_is_refused_alone(own_server):
    async with PostgresInbox(own_server.address, name="refusing") as inbox:
        await inbox.counts()
        sql(own_server.address, RAISING.format(name="refusing", of="/bad", text="index row size 9", code="54000"))
        assert await inbox.accept(delivery(1, "good"))
        with pytest.raises(InvalidRequest, match="can never store it"):
            await inbox.accept(delivery(2, "bad"))
        assert await inbox.accept(delivery(3, "x" * 9000))
        assert (await inbox.counts()).waiting == 2


@pytest.mark.parametrize("sent", [True, False])
async def test_a_commit_without_an_answer_counts_if_it_has_happened(own_server, sent):
    async with PostgresInbox(own_server.address, name=f"doubt_{sent}".lower()) as inbox:
        await inbox.counts()
        connection = inbox._database._connection
        execute, cuts = connection.execute, []

        def broken(statement, *values, **options):
            if "COMMIT" in statement and not cuts:
                cuts.append(statement)
                if sent:
                    execute(statement, *values, **options)
                _cut(connection)
            return execute(statement, *values, **options)

        connection.execute = broken
        assert await inbox.accept(delivery(1)) is True
        assert cuts
        assert await inbox.accept(delivery(1)) is False


async def test_an_outage_is_no_sign_that_a_worker_has_died():
    with server() as made:
        inbox = PostgresInbox(made.address, lease=1.0)
        async with inbox, inbox.backlog() as backlog, PostgresInbox(made.address, lease=1.0).backlog() as other:
            await inbox.accept(delivery(1))
            (claim,) = await backlog.claim(1)
            made.stop(signal.SIGQUIT)
            await sleep(1.5)
            made.start()
            with fail_after(10):
                while True:
                    try:
                        assert await other.claim(1) == []
                        break
                    except ConnectionError:
                        await sleep(0.05)
            await until(lambda: inbox.ready)
            assert await backlog.renew([claim]) == []
            await backlog.done([claim], more=0)
            with pytest.raises(LeaseLost):
                await backlog.done([claim], more=0)
            assert (await inbox.counts()).done == 1


async def test_a_server_that_does_not_answer_holds_up_no_leaving():
    with server() as made:
        async with PostgresInbox(made.address) as inbox:
            await inbox.accept(delivery(1))
            for process in made.processes():
                subprocess.run(["kill", "-STOP", str(process)], check=True)
            try:
                with pytest.raises(TimeoutError), fail_after(0.3):
                    await inbox.accept(delivery(2))
            except BaseException:
                made.process.send_signal(signal.SIGCONT)
                raise
            began = time.monotonic()
        assert time.monotonic() - began < 4
        for process in made.processes():
            subprocess.run(["kill", "-CONT", str(process)], check=True)
