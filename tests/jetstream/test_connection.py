"""The connection opens in the background and again after failures; addresses hold no secrets."""

import asyncio
import subprocess
import sys

import anyio
import pytest

from helpers.sockets import free_port
from rbim.errors import InvalidRequest
from rbim.jetstream.connection import Connection, EngineAway
from rbim.jetstream.settings import NatsSettings, addresses, checked_name, is_location, location


def connection(urls, prepare):
    return Connection(addresses(urls), NatsSettings(), name="test", prepare=prepare)


async def nothing(_):
    pass


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("h1", ("nats://h1:4222",)),
        ("nats://h1, h2:4223,tls://h3", ("nats://h1:4222", "nats://h2:4223", "tls://h3:4222")),
        (["nats://[::1]:5", "h"], ("nats://[::1]:5", "nats://h:4222")),
    ],
)
def test_addresses(given, found):
    assert addresses(given) == found


@pytest.mark.parametrize(
    "wrong", ["", [], "http://h", "nats://h/name", "nats://h:port", "nats://h?x=1", "h,,h", [None], "nats://:4222"]
)
def test_wrong_addresses(wrong):
    with pytest.raises(InvalidRequest, match="servers: "):
        addresses(wrong)


@pytest.mark.parametrize("secret", ["nats://user:very-secret-word@h", "very-secret-word@h", "tls://h,very-secret-word@h"])
def test_no_secrets_in_addresses(secret):
    with pytest.raises(InvalidRequest, match="RBIM_NATS_CREDS_FILE") as failure:
        addresses(secret)
    assert "very-secret-word" not in str(failure.value)


@pytest.mark.parametrize("wrong", ["", "a.b", "a b", ">", "*", "a\n", "n" * 65, None, "ä"])
def test_names_go_into_subjects(wrong):
    with pytest.raises(InvalidRequest, match="name: "):
        checked_name(wrong)


def test_locations():
    assert location("nats://h1,h2:5,h3/copies") == (("nats://h1:4222", "nats://h2:5", "nats://h3:4222"), "copies")
    assert location("tls://h1/copies") == (("tls://h1:4222",), "copies")
    assert [is_location(text) for text in ("nats://h/a", "tls://h/a", "nats.db", "/nats://x")] == [True, True, False, False]
    for wrong in ("nats://h1", "nats://h1/", "copies.db", "nats://h1/a/b"):
        with pytest.raises(InvalidRequest):
            location(wrong)


def test_settings_of_the_environment(bare_environment, tmp_path):
    assert NatsSettings.from_env() == NatsSettings()
    bare_environment.setenv("RBIM_NATS_CREDS_FILE", str(tmp_path / "none.creds"))
    with pytest.raises(InvalidRequest, match=r"RBIM_NATS_CREDS_FILE: .* no file"):
        NatsSettings.from_env()
    (tmp_path / "none.creds").touch()
    assert NatsSettings.from_env().credentials_file == tmp_path / "none.creds"
    bare_environment.setenv("RBIM_NATS_CERT_FILE", str(tmp_path / "none.creds"))
    with pytest.raises(InvalidRequest, match="both or none"):
        NatsSettings.from_env()


def test_files_that_are_no_certificates(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(InvalidRequest, match="ca_file"):
        Connection(("nats://h",), NatsSettings(ca_file=tmp_path / "ca.pem"), name="test", prepare=nothing)


def test_a_missing_library_names_the_extra():
    program = "import sys; sys.modules['nats'] = None; import rbim.jetstream.connection"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'python -m pip install "rbim[nats]"' in ended.stderr.splitlines()[-1]


def test_it_does_not_run_on_trio():
    async def main():
        async with connection("127.0.0.1:1", nothing):
            pass

    with pytest.raises(InvalidRequest, match="asyncio only"):
        anyio.run(main, backend="trio")


async def test_entering_does_not_need_the_network():
    async with asyncio.timeout(1.5), connection([f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"], nothing) as away:
        assert not away.ready
        with pytest.raises(EngineAway, match="Connect call failed"):
            away.require()
        waiting = asyncio.create_task(away.jetstream())
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="not entered"):
        await waiting


async def test_a_server_that_starts_later_is_found(own_nats):
    own_nats.kill()
    async with connection(own_nats.urls, nothing) as late:
        own_nats.start(0)
        assert await (await late.jetstream()).account_info()
        own_nats.kill()
        with anyio.fail_after(20):
            while late.ready:
                await asyncio.sleep(0.01)
        own_nats.start(0)
        assert await (await late.jetstream()).account_info()
        assert late.ready


async def test_preparing_is_tried_again(nats):
    calls = []

    async def prepare(_):
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError("no leader")

    async with connection(nats.urls, prepare) as prepared:
        assert not prepared.ready
        assert prepared.failure == "TimeoutError: no leader"
        await prepared.jetstream()
        assert len(calls) == 3
        prepared.suspect("no answer")
        assert not prepared.ready
        assert prepared.failure == "no answer"
        await prepared.jetstream()
        assert len(calls) == 4


async def test_what_does_not_fit_is_raised(nats):
    async def prepare(_):
        raise InvalidRequest("does not fit")

    refused = connection(nats.urls, prepare)
    with pytest.raises(InvalidRequest, match="does not fit"):
        async with refused:
            pass

    tries = []

    async def later(_):
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError
        raise InvalidRequest("does not fit")

    async with connection(nats.urls, later) as late:
        with pytest.raises(InvalidRequest, match="does not fit"):
            await late.jetstream()
        with pytest.raises(InvalidRequest, match="does not fit"):
            late.require()


async def test_a_client_that_is_closed_for_good_is_replaced(nats):
    async with connection(nats.urls, nothing) as replaced:
        first = await replaced.jetstream()
        await first._nc.close()  # as nats-py does after some errors of a server
        with anyio.fail_after(10):
            while replaced.ready and replaced.require() is first:
                await asyncio.sleep(0.01)
            second = await replaced.jetstream()
        assert second is not first
        assert await second.account_info()


async def test_leaving_ends_also_if_a_cancellation_is_lost_while_it_connects(monkeypatch):
    async def deaf(*_, **__):
        for _ in range(2):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                lost.append(1)
        await asyncio.sleep(1000)

    lost = []
    monkeypatch.setattr("rbim.jetstream.connection.connect", deaf)
    monkeypatch.setattr("rbim.jetstream.connection.FIRST_WAIT", 0.01)
    async with asyncio.timeout(5):
        async with connection("h1", nothing):
            pass
    assert len(lost) == 2


async def test_a_cancellation_that_comes_with_the_first_result_is_not_lost(monkeypatch):
    """``asyncio.wait_for`` of Python 3.11 may return instead."""

    async def never(*_, **__):
        await asyncio.sleep(1000)

    monkeypatch.setattr("rbim.jetstream.connection.connect", never)
    entered = connection("h1", nothing)
    entering = asyncio.create_task(entered.__aenter__())
    await asyncio.sleep(0.01)
    entered._tried.set()
    entering.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait((entering,))
    assert entering.cancelled()
    await entered.close()


async def test_a_cancellation_that_comes_with_a_change_ends_the_connection(nats, monkeypatch):
    """While it prepares again and again, and while it closes a client."""
    monkeypatch.setattr("rbim.jetstream.connection.PREPARE_AGAIN", 1000.0)
    began = asyncio.Event()

    async def prepare(_):
        began.set()
        raise TimeoutError("no leader")

    async with asyncio.timeout(5):
        async with connection(nats.urls, prepare) as unprepared:
            await began.wait()
            await asyncio.sleep(0.05)
            task = unprepared._task
            unprepared._changed.set()
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
