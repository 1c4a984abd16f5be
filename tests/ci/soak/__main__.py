"""``python -m tests.ci.soak client --minutes 15``; the driver starts the subject by ``... subject NAME PLAN ...``."""

import asyncio
import json
import sys

from .command_line import main, scenario
from .probe import Plan, Probe

if sys.argv[1:2] == ["subject"]:
    _, _, name, plan, *words = sys.argv
    asyncio.run(scenario(name).subject(Probe(Plan(**json.loads(plan))), *words))
else:
    sys.exit(main())
