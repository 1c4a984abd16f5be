"""The demo on several machines: processes on this one, some of which are killed while a job runs and callbacks come."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import secrets
import signal
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, field, frozen

from rbim.bulk.report.reading import read_report
from rbim.cli.context import configuration
from rbim.cli.demo.machines.balancer import Balancer
from rbim.cli.demo.machines.crew import RBIM, Crew
from rbim.cli.demo.machines.figures import Callbacks, Death, Figures, Invitations
from rbim.cli.demo.machines.handlers import FILE
from rbim.cli.demo.machines.local_http import LocalHttp
from rbim.cli.demo.machines.nodes import Nodes, free_ports, server_program
from rbim.cli.demo.machines.platform import Platform
from rbim.cli.demo.machines.report import print_figures, print_json
from rbim.cli.demo.machines.story import telling
from rbim.cli.demo.rows import read_rows
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.dialect_text import dialect_document, dialect_fields
from rbim.errors import RbimError
from rbim.jetstream.existing import existing_inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.cli.demo.machines.story import Story
    from rbim.cli.demo.rows import DemoRows
    from rbim.dialect import Dialect

__all__ = ["Plan", "run_demo"]

RECEIVERS = ("receiver 1", "receiver 2")
HANDLERS = ("handler worker 1", "handler worker 2")
WORKERS = ("operation worker 1", "operation worker 2", "operation worker 3")
COORDINATOR = "coordinator"
EMULATOR = "emulator"
INBOX, QUEUE = "copies", "bulk"
ROUTER = "rbim.cli.demo.machines.handlers:router"
CHUNK = 10  # accounts in a request: many requests, not few
RESEND_AFTER = "0.5,0.5,1,1,2,2,4,4,8,8"  # seconds: the real platform's pauses would take minutes
PATIENCE = 60.0  # seconds for what should come at once, on a machine that is busy
LOOK = 0.1  # seconds between two looks
LEAST = 1.0  # seconds that a process is back before the next one is killed
INTERRUPTED = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@frozen(kw_only=True)
class Plan:
    """How long the demo takes. ``deaths``: who is killed in turn, and the seconds until the next thing happens."""

    deaths: tuple[tuple[str, float], ...] = (
        ("handler worker", 7.5),
        ("operation worker", 2.5),
        ("receiver", 2.5),
        ("coordinator", 2.5),
        ("server", 8.0),  # last: an election may take long
    )
    first: float = 1.0
    away: float = 1.5  # seconds until a process is started again
    takeover: float = 4.0  # seconds of silence after which workers take over
    messages: float = 40.0  # per second
    conversations: int = 25

    @property
    def seconds(self) -> float:
        """The seconds from the beginning of the job to the end of the last part."""
        return self.first + sum(seconds for _, seconds in self.deaths)


class _Broken(Exception):
    """A part of the demo does not run; the text says which, and why."""


def run_demo(path: Path | None, *, plain: bool, as_json: bool, plan: Plan | None = None) -> int:
    """Run the demo on the rows of a file (default: an example of 5,000 rows) and return the exit code.

    Raises MissingExtra without nats-server.
    """
    program = server_program()
    try:
        rows, dialect = read_rows(path), configuration().dialect
        with telling(plain=plain, as_json=as_json) as story, TemporaryDirectory(prefix="rbim-demo-") as folder:
            figures = asyncio.run(_stage(Path(folder), program, rows, dialect, plan or Plan(), story))
    except RbimError as error:
        return report_error(error, "rbim demo --machines")
    except _Broken as broken:
        print_error(str(broken))
        return Exit.REFUSED
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)
    mismatches = figures.mismatches()
    for mismatch in mismatches:
        print_error(mismatch)
    return Exit.REFUSED if mismatches else Exit.DONE


async def _stage(  # noqa: PLR0913, PLR0917  # the parts of one demo
    folder: Path, program: str, rows: DemoRows, dialect: Dialect, plan: Plan, story: Story
) -> Figures:
    """Set up all parts, run the demo, and take everything down again."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101  # asyncio.run makes one
    for number in INTERRUPTED:
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, task.cancel)
    ports = free_ports(1 + len(RECEIVERS))
    async with AsyncExitStack() as stack:
        crew = stack.enter_context(Crew(folder, _environment(folder, dialect)))
        http = await stack.enter_async_context(LocalHttp())
        balancer = Balancer(ports[1:])
        await stack.enter_async_context(balancer.running())
        platform = Platform(http, f"http://127.0.0.1:{ports[0]}")
        site = _Site(crew, Nodes(crew, program), platform, balancer, rows, plan, story, min(CHUNK, dialect.invite_limit))
        await site.begin()
        return await site.run()


def _environment(folder: Path, dialect: Dialect) -> dict[str, str]:
    """Return the environment of all processes: no configuration of this machine, and the dialect of the command line."""
    config = folder / "rbim.toml"
    config.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    spelled = {
        dialect_fields()[name].variable: dialect_fields()[name].spell(document)
        for name, document in dialect_document(dialect).items()
    }
    return kept | spelled | {"RBIM_CONFIG": str(config), "no_proxy": "*", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"}


@define(eq=False)
class _Site:
    """All parts of the demo."""

    crew: Crew
    nodes: Nodes
    platform: Platform
    balancer: Balancer
    rows: DemoRows
    plan: Plan
    story: Story
    chunk: int
    deaths: list[Death] = field(init=False, factory=list[Death])
    broken: list[str] = field(init=False, factory=list[str])

    @property
    def _handled_file(self) -> Path:
        return self.crew.folder / "handled"

    @property
    def _journal(self) -> Path:
        return self.crew.folder / "rows.journal"

    # The beginning.

    async def begin(self) -> None:
        """Start everything but the job, and wait until callbacks are handled."""
        crew, inbox, via = self.crew, self.nodes.location(INBOX), self.nodes.location(QUEUE)
        token = {"RBIM_APP_ID": secrets.token_hex(16), "RBIM_APP_TOKEN": secrets.token_hex(16)}
        url = {"RBIM_BASE_URL": self.platform.url}
        port = self.platform.url.rpartition(":")[2]
        self.nodes.start()
        emulator = (*RBIM, "emulator", "--port", port, "--sign-copies")
        crew.start(EMULATOR, *emulator, **token | {"RBIM_RESEND_AFTER": RESEND_AFTER})
        await self._until("the NATS servers", self._is_one_cluster, *self.nodes.names)
        self.story.tell("3 NATS servers with JetStream are one cluster")
        for name, own in zip(RECEIVERS, self.balancer.receivers, strict=True):
            spool = f"{name}.spool"
            crew.start(name, *RBIM, "callback", "serve", "--inbox", inbox, "--spool", spool, "--port", str(own), **token)
        takeover = str(self.plan.takeover)
        for name in HANDLERS:
            work = ("callback", "work", ROUTER, "--inbox", inbox, "--takeover", takeover)
            crew.start(name, *RBIM, *work, **{FILE: str(self._handled_file)})
        rate = self._requests / self.plan.seconds
        for name in WORKERS:
            work = ("worker", "--via", via, "--rate", f"{rate:.2f}/s", "--takeover", takeover)
            crew.start(name, *RBIM, *work, **token, **url)
        await self._until("the emulator", self._emulator_answers, EMULATOR)
        for name, own in zip(RECEIVERS, self.balancer.receivers, strict=True):
            await self._until(name, partial(_listens, own), name)
        await self.platform.begin(self.rows, f"http://127.0.0.1:{self.balancer.port}/")
        self.story.tell("1 emulator, 2 receivers, 2 handler workers and 3 operation workers run")

    @property
    def _requests(self) -> int:
        return sum(-(-len(group.accounts) // self.chunk) for group in self.rows.groups.values())

    async def _is_one_cluster(self) -> bool:
        return await self.nodes.complete(self.platform.http)

    async def _emulator_answers(self) -> bool:
        return await self.platform.http.get(self.platform.url, "/_emulator/") is not None

    async def _until(self, what: str, true: Callable[[], Any], *names: str) -> None:
        """Wait until an async function returns True. Raises _Broken if a process has ended, or after a time."""
        end = time.monotonic() + PATIENCE
        while not await true():
            for name in names:
                if self.crew.code(name) is not None:
                    raise _Broken(f"{name} has ended: {self.crew.said(name)}")
            if time.monotonic() > end:
                said = f": {self.crew.said(names[0])}" if names else ""
                raise _Broken(f"{what}: not ready after {PATIENCE:g} s{said}")
            await asyncio.sleep(LOOK)

    # The middle.

    async def run(self) -> Figures:
        """Run the job, have callbacks come, kill one of each, and return the figures at the end."""
        talking = asyncio.create_task(self.platform.talk(self.plan.messages, self.plan.conversations))
        showing = asyncio.create_task(self._show())
        try:
            await self._until("handler workers", self._both_handle, *HANDLERS)
            await self._begin_job()
            await self._kill_in_turn(talking)
            talking.cancel()
            await self._end()
        finally:
            for task in (talking, showing):
                task.cancel()
            await asyncio.gather(talking, showing, return_exceptions=True)
        return await self._figures()

    async def _begin_job(self) -> None:
        with (self.crew.folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("group", "account"))
            for group in self.rows.groups.values():
                writer.writerows((group.group_id, account) for account in group.accounts)
        job = ("invite", "rows.csv", "--via", self.nodes.location(QUEUE), "--journal", str(self._journal))
        self.crew.start(COORDINATOR, *RBIM, *job, "--chunk", str(self.chunk), "--concurrency", "20", "--plain")
        await self._until("the job", self._job_sends, COORDINATOR)
        accounts = self.rows.total - self.rows.duplicates
        self.story.tell(f"the job has begun: {accounts:,} accounts for {len(self.rows.groups)} groups; callbacks come")

    async def _both_handle(self) -> bool:
        return len({each["process"] for each in self._handled()}) == len(HANDLERS)

    async def _job_sends(self) -> bool:
        return bool(await self.platform.requests())

    async def _kill_in_turn(self, talking: asyncio.Task[int]) -> None:
        await asyncio.sleep(self.plan.first)
        for who, seconds in self.plan.deaths:
            if talking.done():
                await talking  # raises what ended it
            name = await self._victim(who)
            if self.crew.code(name) is not None:
                self.broken.append(f"{name} had ended before it was killed: {self.crew.said(name)}")
            death = Death(who=who, process=self.crew.number(name), at=time.monotonic())
            self.deaths.append(death)
            self.crew.kill(name)
            self.story.tell(f"killed {name} (process {death.process})")
            await asyncio.sleep(self.plan.away)
            if who == "server":
                await self._until("another server that leads", partial(self._is_led_by_another, name))
                death.more = f"{await self._leading_server()} leads what {name} led"
            if who == COORDINATOR:
                self.crew.start(COORDINATOR, *RBIM, "job", "resume", str(self._journal), "--plain")
            else:
                self.crew.start_again(name)
            death.back = time.monotonic()
            self.story.tell(f"  {'resumed the job' if who == COORDINATOR else f'started {name} again'}")
            await asyncio.sleep(max(LEAST, seconds - (death.back - death.at)))
            if who == "server":
                await self._until("the NATS servers", self._is_one_cluster)
            death.until = time.monotonic()

    async def _victim(self, who: str) -> str:
        """Return the name of the process that shows most when it dies."""
        if who == "server":
            return await self._leading_server()
        if who == "receiver":
            return RECEIVERS[self.balancer.current]
        if who == "handler worker":
            return HANDLERS[0]
        return WORKERS[0] if who == "operation worker" else COORDINATOR

    async def _is_led_by_another(self, name: str) -> bool:
        return await self.nodes.leader(self.platform.http, INBOX) not in {name, None}

    async def _leading_server(self) -> str:
        """Return the server that leads the events of the inbox."""
        return await self.nodes.leader(self.platform.http, INBOX) or self.nodes.names[0]

    # The end.

    async def _end(self) -> None:
        """Wait until the job has ended and every callback was handled; after a time, go on with what there is."""
        with suppress(_Broken):
            await self._until("the end of the job", self._job_has_ended)
            self.story.tell("the job has ended")
            await self._until("the handling of callbacks", self._all_handled)
            self.story.tell("every callback was handled")

    async def _job_has_ended(self) -> bool:
        return self.crew.code(COORDINATOR) is not None

    async def _all_handled(self) -> bool:
        """Return whether all messages were handled, and no more have come for a moment: changes of groups are some, too."""
        before = await self._messages()
        await asyncio.sleep(5 * LOOK)
        return before == await self._messages() <= {each["id"] for each in self._handled()}

    async def _messages(self) -> set[str]:
        return {each["message_id"] for each in await self.platform.deliveries()}

    async def _figures(self) -> Figures:
        platform = self.platform
        found = read_report(self._journal).as_json()
        report = found["accounts"] | {"duplicate": self.rows.duplicates, "total": self.rows.total}
        return Figures(
            invitations=Invitations(
                rows=self.rows,
                report=report,
                state=await platform.state(),
                requests=await platform.requests(),
                resent=found["requests"]["resent"],
                chunk=self.chunk,
            ),
            callbacks=Callbacks(
                deliveries=await platform.deliveries(), handled=self._handled(), counts=await self._counts()
            ),
            deaths=self.deaths,
            began=self.story.began,
            seconds=time.monotonic() - self.story.began,
            broken=self.broken,
        )

    async def _counts(self) -> dict[str, int]:
        """Return the counts of the inbox, once nothing waits there: results are written a moment after the handlers end."""
        found: dict[str, int] = {}
        inbox = await existing_inbox(self.nodes.addresses, name=INBOX)
        assert inbox is not None  # noqa: S101  # the receivers made it
        async with inbox:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while not found or found["waiting"]:
                        found = attrs.asdict(await inbox.counts())
        return found

    def _handled(self) -> list[dict[str, Any]]:
        file = self._handled_file
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    async def _show(self) -> None:
        """Show how far everything is, again and again."""
        while True:
            invited, total = 0, self.rows.total - self.rows.duplicates
            if self._journal.exists():
                with suppress(RbimError):
                    invited = (await asyncio.to_thread(read_report, self._journal)).accounts.done
            self.story.show(f"{invited:,} of {total:,} accounts invited, {len(self._handled()):,} callbacks handled")
            await asyncio.sleep(5 * LOOK)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
