"""The client for code without ``async``: threads, errors, views, fan-out, interruptions, closing and forks."""

import asyncio
import contextlib
import contextvars
import gc
import inspect
import json
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

import rbim.sync
from helpers.emulators import box
from helpers.pages import run_program
from helpers.paths import ROOT
from helpers.stubs import Stub, answer
from helpers.tables import each_row
from rbim import (
    AsyncClient,
    AuthenticationError,
    CallEnded,
    Calls,
    ClientClosed,
    CreateGroup,
    Done,
    Failed,
    Groups,
    GroupType,
    InvalidRequest,
    Limits,
    NotFound,
    Outcome,
    QueryGroupDetail,
)
from rbim.operations import catalogue
from rbim.sync import Client, View

PATIENCE = 20


def opener(emulator, **options):
    """Return a function that makes an AsyncClient of an emulator, in real time."""

    def make():
        return AsyncClient(base_url="http://emulator", credentials=emulator.credentials, transport=emulator, **options)

    return make


@pytest.fixture
def emulator():
    return box(clock=None)


@pytest.fixture
def client(emulator):
    with Client(opener(emulator)) as client:
        yield client
    assert threads() == 0


def threads():
    return sum(each.name == "rbim" for each in threading.enumerate())


def no_thread_is_left():
    """A thread that was started twice, because its start was interrupted, may need a moment to end."""
    give_up = time.monotonic() + PATIENCE
    while threads():
        assert time.monotonic() < give_up
        time.sleep(0.001)
    return True


@pytest.fixture
def group(client):
    return client.groups.create(name="团队", type=GroupType.VIP).group_id


def ask(group):
    return QueryGroupDetail(group_id=group)


# ------------------------------------------------------------------------------ calls


def test_many_threads_share_one_client_that_the_first_of_them_opens(emulator):
    client = Client(opener(emulator))
    together = threading.Barrier(8)

    def create(_):
        together.wait(PATIENCE)
        return client.groups.create(name="团队", type=GroupType.VIP).group_id

    with ThreadPoolExecutor(8) as pool:
        group, *_ = pool.map(create, range(8))
    assert threads() == 1

    def invite(account):
        return client.groups.invite(group_id=group, members=[account]).invited

    with ThreadPoolExecutor(32) as pool:
        invited = [*pool.map(invite, map(str, range(200)))]
    assert invited == [(str(number),) for number in range(200)]
    assert client.groups.detail(group_id=group).count == 201
    client.close()
    assert threads() == 0


def test_a_client_cannot_be_pickled_and_says_so():
    with pytest.raises(TypeError, match=r"a client cannot be pickled; make one in the other process"):
        pickle.dumps(Client(AsyncClient.from_env))


def test_an_error_arrives_in_the_thread_that_called(client):
    with pytest.raises(NotFound) as caught:
        client.groups.detail(group_id="g1")
    assert caught.value.outcome is Outcome.REFUSED
    with pytest.raises(InvalidRequest):
        client.groups.detail(group_id="")
    with pytest.raises(SystemExit):
        client.run(leaving)
    assert client.load.calls == 0


async def leaving(_):
    raise SystemExit


async def short(_):
    return "done"


def test_every_operation_of_rbim_is_a_method_with_the_same_parameters(client):
    for entry in catalogue.entries():
        if entry.operation.__module__.startswith("rbim."):
            blocking = getattr(getattr(client, entry.namespace), entry.method)
            plain = getattr(getattr(opener(box())(), entry.namespace), entry.method)
            assert inspect.signature(blocking) == inspect.signature(plain)
            assert (blocking.__name__, blocking.__doc__) == (plain.__name__, plain.__doc__)


def test_the_namespaces_have_every_method():
    for plain, blocking in [(Groups, rbim.sync.Groups), (Calls, rbim.sync.Calls)]:
        assert {name for name in dir(plain) if name[0] != "_"} - {"methods"} <= set(dir(blocking))


def test_many_accounts_are_invited_and_removed(client, group):
    accounts = [str(number) for number in range(120)]
    assert client.groups.invite_all(group_id=group, members=accounts).invited == (*accounts,)
    assert client.groups.detail(group_id=group).count == 121
    assert client.groups.remove_all(group_id=group, members=accounts).removed == (*accounts,)


def test_what_an_async_client_has_for_its_callers_is_here_too():
    """But for what belongs to its event loop, and what ``client.run`` reaches."""
    others = {"open", "aclose", "clock", "dialect", "name", "prepare", "priority"}
    public = {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert public - {name for name in dir(Client) if not name.startswith("_")} == others


def test_views_share_the_client(client, group, emulator):
    view = client.acting_as("1001").tuned(deadline=5, priority="low")
    assert isinstance(view, View)
    assert view.send(CreateGroup(name="a", type=GroupType.VIP)).group_id in emulator.state.groups
    assert view.exchange(ask(group)).answer.name == "团队"
    assert [each.owner for each in emulator.state.groups.values()] == ["admin", "1001"]
    assert client.calls.__class__ is rbim.sync.Calls
    assert client.load.places == 100
    client.warm_up()
    with pytest.raises(InvalidRequest, match="deadline"):
        client.tuned(deadline=-1).groups.detail(group_id=group)


def test_run_gives_the_function_the_async_client_and_the_context_of_the_caller(client):
    tenant = contextvars.ContextVar("tenant")
    tenant.set("a")

    async def function(inner):
        assert isinstance(inner, AsyncClient)
        return tenant.get(), threading.current_thread().name

    assert client.run(function) == ("a", "rbim")


def test_a_call_in_the_thread_of_the_event_loop_would_wait_for_itself():
    def calling(observation):
        if isinstance(observation, CallEnded):
            with pytest.raises(RuntimeError, match="wait for itself"):
                _ = client.load
            seen.append(observation.operation)

    seen = []
    with Client(opener(box(clock=None), observers=[calling])) as client:
        client.groups.create(name="a", type=GroupType.VIP)
    assert len(seen) == 1


# ------------------------------------------------------------------------------ opening and closing


def test_the_first_call_opens_it_and_one_that_cannot_be_opened_tries_again(monkeypatch):
    for name in [each for each in os.environ if each.startswith("RBIM_")]:
        monkeypatch.delenv(name)
    emulator = box(clock=None)
    client = Client.from_env(transport=emulator, credentials=emulator.credentials)
    assert threads() == 0
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="RBIM_BASE_URL"):
            client.groups.search(name="a")
        with pytest.raises(InvalidRequest, match="RBIM_BASE_URL"), client:
            pytest.fail("it is open")
    monkeypatch.setenv("RBIM_BASE_URL", "http://emulator")
    assert len(client.groups.search(name="a")) == 0
    client.close()
    assert threads() == 0


def test_an_event_loop_that_cannot_be_made_is_an_error_of_the_call(monkeypatch):
    def none():
        raise OSError("too many open files")

    other = Client(opener(box()))
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events, "new_event_loop", none)
        with pytest.raises(OSError, match="too many"):
            other.run(short)
    assert other.run(short) == "done"
    other.close()


def test_a_closed_client_stays_closed(client, group):
    client.close()
    client.close()
    for use in (client.__enter__, lambda: client.groups.detail(group_id=group), lambda: client.tuned(timeout=1).load):
        with pytest.raises(ClientClosed):
            use()
    unused = Client(opener(box()))
    unused.close()
    with pytest.raises(ClientClosed):
        _ = unused.load


def test_closing_ends_calls_that_wait_in_other_threads(emulator):
    began = threading.Barrier(3)
    errors = []

    class Slow(Stub):
        async def send(self, *_, **__):
            await asyncio.to_thread(began.wait, PATIENCE)
            await asyncio.sleep(3600)

    async def forever(_):
        await asyncio.to_thread(began.wait, PATIENCE)
        await asyncio.sleep(3600)

    def wait(call):
        with pytest.raises(ClientClosed) as caught:
            call()
        errors.append(caught.value.outcome)

    client = Client(lambda: AsyncClient(base_url="http://x", credentials=emulator.credentials, transport=Slow()))
    calls = [lambda: client.groups.detail(group_id="g1"), lambda: client.run(forever)]
    waiting = [threading.Thread(target=wait, args=[call]) for call in calls]
    for each in waiting:
        each.start()
    began.wait(PATIENCE)
    client.close()
    for each in waiting:
        each.join(PATIENCE)
    assert errors == [Outcome.UNKNOWN] * 2
    assert threads() == 0


def test_an_error_of_closing_is_raised_once(emulator):
    class Broken(Stub):
        async def __aexit__(self, *_):
            raise OSError("broken")

    client = Client(lambda: AsyncClient(base_url="http://x", credentials=emulator.credentials, transport=Broken()))
    with pytest.raises(OSError, match="broken"), client:
        pass
    client.close()


def test_a_closed_client_is_freed(emulator):
    with Client(opener(emulator)) as client:
        client.groups.create(name="a", type=GroupType.VIP)
    seen = weakref.ref(client), weakref.ref(client._here())
    del client
    gc.collect()
    assert [each() for each in seen] == [None, None]


# ------------------------------------------------------------------------------ interruptions


class Deadline(BaseException):
    """As SoftTimeLimitExceeded, raised by a signal's handler."""


@pytest.fixture
def alarm():
    def handler(*_):
        raise Deadline

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals of UNIX")
@each_row("number, kind", [(signal.SIGINT, KeyboardInterrupt), (getattr(signal, "SIGALRM", 0), Deadline)])
def test_an_exception_in_the_waiting_thread_ends_the_call(number, kind, client, group):
    ended = threading.Event()

    async def long(_):
        signal.pthread_kill(threading.main_thread().ident, number)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(kind):
        client.run(long)
    assert ended.wait(PATIENCE)
    assert client.groups.detail(group_id=group).count == 1


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals of UNIX")
def test_an_exception_of_a_signal_that_wakes_no_waiting_thread_ends_the_call(client):
    ended = SimpleQueue()

    async def long(_):
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)  # as one that comes just before the other thread waits
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ended.put("cancelled")
            raise
        ended.put("answered")

    with pytest.raises(Deadline):
        client.run(long)
    assert ended.get(timeout=PATIENCE) == "cancelled"


SOURCE = Path(rbim.sync.__file__).read_text(encoding="utf-8").splitlines()


class At:
    """Calls a function in this thread before a line of rbim.sync: the one with this number, or at last where the call waits.

    A line with ``with`` is left out: it runs once more at the end of its block, when no signal can come.
    """

    def __init__(self, line, function):
        self.line = line
        self.function = function
        self.lines = 0

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != rbim.sync.__file__:
            return None
        if event == "line" and not SOURCE[frame.f_lineno - 1].lstrip().startswith("with "):
            self.lines += 1
            waits = "_next(call.ended)" in SOURCE[frame.f_lineno - 1]
            if waits:
                self.waits = self.lines
            if self.line is not None and (self.lines == self.line or (waits and self.lines < self.line)):
                self.function()
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)


def interrupt():
    raise KeyboardInterrupt


def lines_of(client):
    """Return the number of lines that run in the thread of a call until it waits."""
    with At(None, None) as whole:
        assert client.run(short) == "done"
    assert whole.waits > 10
    return whole.waits


@pytest.mark.parametrize("opened", [True, False])
def test_ctrl_c_at_any_moment_leaves_no_call_behind(opened, emulator):
    running = set()

    async def long(_):
        task = asyncio.current_task()
        running.add(task)
        try:
            await asyncio.sleep(3600)
        finally:
            running.remove(task)

    async def settled(_):
        async with asyncio.timeout(PATIENCE):
            while running:
                await asyncio.sleep(0)

    def made():
        client = Client(opener(emulator))
        if opened:
            assert client.run(short) == "done"
        return client

    with contextlib.closing(made()) as client:
        lines = lines_of(client)
    for line in range(1, lines + 1):
        for goes_on in (True, False):
            client = made()
            with pytest.raises(KeyboardInterrupt), At(line, interrupt):
                client.run(long)
            if goes_on:
                client.run(settled)
                assert client.run(short) == "done"
            client.close()
            assert not running
            assert no_thread_is_left()


def test_a_call_that_is_cancelled_before_it_begins_does_not_begin(client):
    holds, release = threading.Event(), threading.Event()
    begun = []

    async def hold(_):
        holds.set()
        release.wait(PATIENCE)

    async def never(_):
        begun.append(True)

    lines = lines_of(client)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.run, hold)
        holds.wait(PATIENCE)
        for line in range(1, lines + 1):
            with pytest.raises(KeyboardInterrupt), At(line, interrupt):
                client.run(never)
        release.set()
        held.result(PATIENCE)
    assert client.load.calls == 0
    assert begun == []


@pytest.mark.parametrize("opened", [True, False])
def test_a_call_that_is_made_while_another_thread_closes_the_client_ends(opened, emulator):
    def made():
        client = Client(opener(emulator))
        if opened:
            client.run(short)
        return client

    ends = set()
    with contextlib.closing(made()) as client:
        lines = lines_of(client)
    for line in range(1, lines + 1):
        client = made()
        closing = threading.Thread(target=client.close)

        def close(closing=closing):
            closing.start()
            closing.join(0.05)  # it waits while the call is handed over

        with At(line, close):
            try:
                ends.add(client.run(short))
            except ClientClosed as error:
                ends.add(str(error))
        closing.join(PATIENCE)
        assert no_thread_is_left()
    assert ends == {"done", "the client is closed: create a new one"}


# ------------------------------------------------------------------------------ fan-out


class Answering(Stub):
    """Answers each request when ``release`` allows it, and counts those in flight."""

    def __init__(self):
        super().__init__()
        self.release = threading.Semaphore(0)
        self.in_flight = self.most = self.cancelled = 0
        self.answers = {}
        self.seen = []

    async def send(self, request, /, **_):
        group = json.loads(request.body)["groupId"]
        self.seen.append(group)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            while not self.release.acquire(blocking=False):
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return self.answers.get(group, answer())


@pytest.fixture
def slow():
    return Answering()


@pytest.fixture
def over(slow, emulator):
    make = lambda: AsyncClient(base_url="http://x", credentials=emulator.credentials, transport=slow)  # noqa: E731
    with Client(make) as client:
        yield client
    assert slow.in_flight == 0


def test_fan_out_gives_an_outcome_for_each_operation(over, slow):
    slow.release.release(50)
    slow.answers = {"g7": answer("900404")}
    with over.fan_out((ask(f"g{number}") for number in range(50)), workers=8) as outcomes:
        found = {each.index: each for each in outcomes}
    assert sorted(found) == [*range(50)]
    assert {number for number, each in found.items() if isinstance(each, Failed)} == {7}
    assert isinstance(found[7].error, NotFound)
    assert all(each.operation == ask(f"g{number}") for number, each in found.items())
    assert slow.most <= 8
    with over.fan_out([]) as outcomes:
        assert [*outcomes] == []


def test_fan_out_reads_its_input_in_the_thread_of_the_block_as_far_ahead_as_it_may(over, slow):
    readers, ahead = set(), []
    taken = 0

    def operations():
        for number in range(30):
            readers.add(threading.current_thread())
            ahead.append(number + 1 - taken)
            yield ask(f"g{number}")

    slow.release.release(30)
    with over.fan_out(operations(), workers=5) as outcomes:
        for _ in outcomes:
            taken += 1
    assert readers == {threading.current_thread()}
    assert taken == 30
    assert max(ahead) == 5


def test_calls_go_before_the_requests_of_a_fan_out(slow, emulator):
    def make():
        limits = Limits(concurrency=1)
        return AsyncClient(base_url="http://x", credentials=emulator.credentials, transport=slow, limits=limits)

    def waiting(number):
        return until_load(lambda load: load.waiting == number)

    with Client(make) as client, ThreadPoolExecutor(2) as pool, client.fan_out([ask("g1"), ask("g2")]) as outcomes:
        background = pool.submit(lambda: [*outcomes])
        client.run(waiting(1))
        call = pool.submit(client.groups.detail, group_id="g3")
        client.run(waiting(2))
        slow.release.release(3)
        call.result(PATIENCE)
        assert len(background.result(PATIENCE)) == 2
    assert slow.seen == ["g1", "g3", "g2"]


def until_load(accepts):
    async def wait(client):
        while not accepts(client.load):
            await asyncio.sleep(0)

    return wait


def test_leaving_the_block_ends_what_runs(over, slow):
    slow.release.release(1)
    with over.fan_out((ask("g1") for _ in range(1000)), workers=4) as outcomes:
        assert isinstance(next(outcomes), Done)
    over.run(until_load(lambda load: load.in_flight == 0))
    assert slow.cancelled <= 4
    with pytest.raises(KeyError), over.fan_out([ask("g1")] * 3) as outcomes:
        raise KeyError
    assert over.load.calls == 0


def test_what_ends_a_fan_out_is_raised_by_its_iterator(over, slow):
    def broken():
        yield ask("g1")
        raise KeyError

    with pytest.raises(KeyError), over.fan_out(broken()) as outcomes:
        next(outcomes)
    over.run(until_load(lambda load: load.in_flight == 0))
    for workers in (0, -1, 1.5, None):
        with pytest.raises(InvalidRequest, match="workers"), over.fan_out([ask("g1")], workers=workers):
            pytest.fail("it began")
    slow.answers = {"g2": answer("161102")}
    slow.release.release(3)
    with over.fan_out([ask("g1"), ask("g2"), ask("g3")], workers=1) as outcomes:
        assert next(outcomes).index == 0
        with pytest.raises(AuthenticationError):
            next(outcomes)
    over.close()
    with pytest.raises(ClientClosed), over.fan_out([ask("g1")]) as outcomes:
        next(outcomes)


# ------------------------------------------------------------------------------ processes

PROGRAM = """
import contextlib, os, sys, threading, warnings
from rbim import AsyncClient, ClientClosed
from rbim.emulator import Emulator
from rbim.sync import Client
emulator = Emulator()
client = Client(lambda: AsyncClient(base_url="http://x", credentials=emulator.credentials, transport=emulator))
def search():
    return len(client.groups.search(name="a"))
"""


def test_the_end_of_the_process_closes_it():
    program = f"""{PROGRAM}
import asyncio
async def last(inner):
    try:
        await asyncio.sleep(3600)
    finally:
        print("ended")
def wait():
    with contextlib.suppress(ClientClosed):
        client.run(last)
thread = threading.Thread(target=wait, daemon=True)
client.run(lambda inner: asyncio.to_thread(len, ""))  # asyncio has an executor now, to end at the exit
thread.start()
while not client.run(lambda inner: asyncio.sleep(0, len(asyncio.all_tasks()) > 2)):
    pass
print("last line")
"""
    assert run_program(program, ROOT) == "last line\nended\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_opens_a_client_of_its_own_and_its_parents_goes_on():
    """Also if a thread of the parent had the lock of its client at that moment."""
    program = f"""{PROGRAM}
warnings.simplefilter("ignore", DeprecationWarning)  # of forks of a process with threads
search()
client._here().lock.acquire()
child = os.fork()
if child == 0:
    search()
    sys.stdout.write(f"child {{sum(thread.name == 'rbim' for thread in threading.enumerate())}}\\n")
    sys.exit(0)
client._here().lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
search()
"""
    assert run_program(program, ROOT) == "child 1\n0\n"
