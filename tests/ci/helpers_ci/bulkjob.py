"""A job of invitations in a process of its own, as users run one.

Run by tests: ``python bulkjob.py begin JOURNAL INPUT --chunk 20`` (the input ``-``: standard input) or
``python bulkjob.py resume JOURNAL``; the environment says where the platform is. A line on standard output tells that it
begins, the last one is what became of it, as JSON.
"""

import argparse
import json
import sys

import anyio

from rbim import AsyncClient
from rbim.bulk import InviteJob, RowFile, open_job


async def main(told: argparse.Namespace) -> None:
    async with AsyncClient.from_env() as client:
        if told.command == "resume":
            run = open_job(client, told.journal).resume()
        else:
            source = sys.stdin.buffer if told.input == "-" else told.input
            run = InviteJob(client, journal=told.journal, chunk=told.chunk).run(RowFile(source))
        sys.stdout.write("begins\n")
        sys.stdout.flush()
        report = await run
    counts = report.accounts
    names = ("total", "done", "refused", "failed", "unknown", "skipped", "duplicate")
    sys.stdout.write(json.dumps({"why": run.why} | {name: getattr(counts, name) for name in names}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="asyncio")
    commands = parser.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("begin")
    resume = commands.add_parser("resume")
    for command in (begin, resume):
        command.add_argument("journal")
    begin.add_argument("input")
    begin.add_argument("--chunk", type=int, default=50)
    options = parser.parse_args()
    anyio.run(main, options, backend=options.backend)
