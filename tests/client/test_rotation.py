"""Credentials from a provider: asked on entering and after a refusal, under load, by many calls, and when it fails."""

import asyncio
import base64
import hashlib
import logging
import traceback

import anyio
import pytest

from helpers.stubs import BASE_URL, CREDENTIALS, INVITE, NEVER, ONCE, READ, TOKEN, Recorder, Stub, answer, failing
from rbim import AsyncClient, AuthenticationError, ClientClosed, Credentials, InvalidRequest, Limits, Retry, TimestampExpired
from rbim.config import credentials_from_env

NEW = "another-token-of-the-application"
REFUSED_SIGNATURE = answer("111109")


def signed_with(request, token):
    """Check a signature by hand: MD5 of application, token and the timestamp in Authorization."""
    app_id, _, stamp = base64.b64decode(request.headers["Authorization"]).decode().partition(":")
    return request.query["sig"] == hashlib.md5(f"{app_id}{token}{stamp}".encode()).hexdigest().upper()


class Platform(Stub):
    """A platform that accepts one token, ``token``, which may change; each answer takes ``seconds``."""

    def __init__(self, *, seconds=0.05, **options):
        super().__init__(**options)
        self.token = TOKEN
        self.seconds = seconds
        self.refused = 0

    async def respond(self, request, _):
        await self.clock.sleep(self.seconds / 2)
        good = signed_with(request, self.token)
        await self.clock.sleep(self.seconds / 2)
        self.refused += not good
        return answer() if good else REFUSED_SIGNATURE


class Provider:
    """A provider that returns ``token``'s credentials after ``seconds``, and counts its calls."""

    def __init__(self, clock=None, seconds=0.0):
        self.clock = clock
        self.seconds = seconds
        self.token = TOKEN
        self.asked = 0
        self.error = None

    def now(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return Credentials(app_id=CREDENTIALS.app_id, app_token=self.token)

    async def later(self):
        await self.clock.sleep(self.seconds)
        return self.now()


def client_of(provider, platform, **options):
    return AsyncClient(
        base_url=BASE_URL, credentials=provider, transport=platform, clock=platform.clock, **{"retry": ONCE} | options
    )


async def test_it_is_asked_on_entering_and_not_for_each_call():
    for kind in ["now", "later"]:
        platform = Platform()
        provider = Provider(platform.clock, 0.5)
        client = client_of(getattr(provider, kind), platform)
        assert provider.asked == 0
        assert "?" in repr(client)
        async with client:
            assert CREDENTIALS.app_id in repr(client)
            for _ in range(5):
                await client.send(READ)
        assert provider.asked == 1
        assert platform.refused == 0
        assert all(CREDENTIALS.app_id in request.path for request in platform.requests)


async def refused_once(kind, op):
    platform, recorder = Platform(), Recorder()
    provider = Provider(platform.clock, 0.5)
    async with client_of(getattr(provider, kind), platform, observers=[recorder]) as client:
        platform.token = provider.token = NEW
        await client.send(op)
    assert len(platform.requests) == 2
    assert provider.asked == 2
    assert recorder.kinds.count("AttemptEnded") == 2


async def test_a_refused_call_is_sent_once_more_with_the_new_credentials():
    for op in [READ, INVITE, NEVER]:
        for kind in ["now", "later"]:
            await refused_once(kind, op)


async def test_a_rotation_under_load_costs_no_call():
    """The platform changes its token at one moment, three times, while hundreds of calls are in flight."""
    platform = Platform()
    provider = Provider(platform.clock, 0.1)
    async with client_of(provider.later, platform, limits=Limits(concurrency=40)) as client:
        answered = 0

        async def caller():
            nonlocal answered
            for _ in range(20):
                await client.send(NEVER)
                answered += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(caller)
            for token in ("second-token", "third-token", "fourth-token"):
                await platform.clock.sleep(0.4)
                platform.token = provider.token = token
        assert answered == 1200
    assert provider.asked == 4  # one question for all the calls that were refused together
    assert 3 <= platform.refused <= 3 * 100
    assert len(platform.requests) == 1200 + platform.refused


async def test_wrong_credentials_are_an_error_and_no_flood_of_questions():
    platform = Platform()
    provider = Provider()
    provider.token = "wrong-all-the-time"
    async with client_of(provider.now, platform) as client:
        errors = [await failing(client.send(READ)) for _ in range(30)]  # 0.05 s each
        assert {type(error) for error in errors} == {AuthenticationError}
        assert all(len(error.attempts) == 1 for error in errors)
    assert 2 <= provider.asked <= 3  # once a second
    assert len(platform.requests) == 30


async def test_a_new_token_that_is_refused_too_is_an_error_after_two_attempts():
    platform = Platform()
    provider = Provider()
    async with client_of(provider.now, platform, retry=Retry(attempts=5)) as client:
        platform.token = "nobody-has-it"
        provider.token = NEW
        error = await failing(client.send(READ))
    assert isinstance(error, AuthenticationError)
    assert len(error.attempts) == len(platform.requests) == 2


@pytest.mark.parametrize("kind", ["now", "later"])
async def test_a_provider_that_fails_is_logged_without_its_words_and_asked_again_later(kind, caplog):
    platform = Platform()
    provider = Provider(platform.clock, 0.01)
    async with client_of(getattr(provider, kind), platform, name="tenant-7") as client:
        platform.token = provider.token = NEW
        provider.error = ValueError(f"vault says {NEW}")
        error = await failing(client.send(READ))
        assert isinstance(error, AuthenticationError)
        assert NEW not in "".join(traceback.format_exception(error)) + caplog.text
        (record,) = caplog.records
        assert record.getMessage() == "tenant-7: the provider of credentials failed: ValueError"
        assert record.levelno == logging.WARNING
        provider.error = None
        await platform.clock.sleep(1)
        await client.send(READ)


async def test_a_provider_that_hangs_costs_a_call_its_deadline_and_the_others_go_on():
    platform = Platform()
    provider = Provider(platform.clock, 0.0)
    async with client_of(provider.later, platform, deadline=2.0) as client:
        platform.token = provider.token = NEW
        provider.seconds = 1e6
        began = platform.clock.elapsed
        error = await failing(client.send(READ))
        assert isinstance(error, AuthenticationError)
        assert error.__notes__ == ["the provider of credentials has not answered in time"]
        assert platform.clock.elapsed - began <= 2.1
        provider.seconds = 0.1
        await platform.clock.sleep(10)  # for so long it is waited for
        await client.send(READ)  # who was cancelled while asking leaves nothing behind


async def test_callers_that_do_not_wait_leave_the_question_to_the_next_one():
    """Each gives up sooner than the provider answers; the question goes on, once."""
    platform = Platform()
    provider = Provider(platform.clock, 0.0)
    async with client_of(provider.later, platform) as client:
        platform.token = provider.token = NEW
        provider.seconds = 0.5
        answered = 0
        for _ in range(20):
            with platform.clock.scope(0.2):
                await client.send(READ)
                answered += 1
        assert provider.asked == 2
        assert answered >= 16


async def test_whatever_a_provider_raises_is_its_failure_alone():
    for kind in [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit]:
        platform = Platform()
        provider = Provider(platform.clock, 0.0)
        async with client_of(provider.later, platform) as client:
            platform.token = provider.token = NEW
            provider.error = kind()
            assert isinstance(await failing(client.send(READ)), AuthenticationError)
            provider.error = None
            await platform.clock.sleep(1)
            await client.send(READ)


async def test_closing_ends_a_call_that_waits_for_the_provider():
    platform = Platform()
    provider = Provider(platform.clock, 0.0)
    client = client_of(provider.later, platform)
    await client.open()
    platform.token = NEW
    provider.seconds = 1e6
    async with anyio.create_task_group() as tasks:
        found = []

        async def call():
            found.append(await failing(client.send(READ)))

        tasks.start_soon(call)
        await platform.clock.sleep(0.2)
        await client.aclose()
    assert isinstance(found[0], ClientClosed)


async def test_with_too_little_time_for_another_attempt_no_other_credentials_are_asked_for():
    platform, provider = Platform(seconds=1.0), Provider()
    async with client_of(provider.now, platform, limits=Limits(concurrency=1), deadline=20.0) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):  # calls that wait, so that the client learns what an attempt takes
                tasks.start_soon(client.send, READ)
        platform.token = provider.token = NEW
        assert isinstance(await failing(client.tuned(deadline=1.5).send(READ)), AuthenticationError)
        assert (provider.asked, len(platform.requests)) == (1, 6)
        await client.tuned(deadline=3.0).send(READ)
        assert (provider.asked, len(platform.requests)) == (2, 8)


async def test_an_expired_timestamp_asks_nobody():
    platform = Stub(answer("161106"))
    provider = Provider()
    async with client_of(provider.now, platform, retry=Retry(attempts=3)) as client:
        assert isinstance(await failing(client.send(READ)), TimestampExpired)
    assert provider.asked == 1


async def test_credentials_of_another_application_are_not_used(caplog):
    platform = Platform()
    given = [CREDENTIALS, Credentials(app_id="another-application", app_token=NEW)]
    async with client_of(lambda: given.pop(0), platform) as client:
        platform.token = NEW
        assert isinstance(await failing(client.send(READ)), AuthenticationError)
    assert "InvalidRequest" in caplog.text
    assert len(platform.requests) == 1


async def test_a_provider_of_anything_else_is_refused_on_entering_without_its_words():
    for wrong in [None, "app:token", ("app", "token"), {"app_id": "a"}, Credentials]:
        client = client_of(lambda wrong=wrong: wrong, Platform())
        with pytest.raises(InvalidRequest, match="credentials: a function that returns Credentials") as refused:
            await client.open()
        assert "app:token" not in str(refused.value)
        assert "new" in repr(client)


async def test_the_variables_of_the_environment_are_read_again(monkeypatch, tmp_path):
    """The function that reads them is a provider: a file that is replaced holds the new token."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    monkeypatch.setenv("RBIM_APP_ID", CREDENTIALS.app_id)
    monkeypatch.delenv("RBIM_APP_TOKEN", raising=False)
    monkeypatch.setenv("RBIM_APP_TOKEN_FILE", str(file))
    platform = Platform()
    async with client_of(credentials_from_env, platform) as client:
        await client.send(READ)
        file.write_text(NEW)
        platform.token = NEW
        await client.send(READ)
    assert platform.refused == 1
