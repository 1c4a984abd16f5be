"""A subject as a process: ``python -m tests.soak.subject NAME PLAN ...``; the driver starts it."""

import asyncio
import json
import sys

from .probe import Plan, Probe
from .scenarios import scenario

if __name__ == "__main__":
    name, plan, *words = sys.argv[1:]
    asyncio.run(scenario(name).subject(Probe(Plan(**json.loads(plan))), *words))
