"""The page on transports: its programs run as they stand, and its tables say what the code and the suite say."""

import importlib
import inspect
import re
from typing import Any

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import DOCS
from helpers.transports import TRANSPORTS, UVLOOP
from rbim.testing.conformance.suite import CASES, Conformance, failures
from rbim.transports._shared.base import BaseTransport

PAGE = (DOCS / "transports.md").read_text(encoding="utf-8")
PYREQWEST = (DOCS / "examples" / "pyreqwest_transport.py").read_text(encoding="utf-8")
USE, SESSION, SHARE, WRITE, TRY = [block.text for block in blocks_of("docs/transports.md", "python")]
BY_TWO = """
import os
import anyio
from rbim import GroupType

async def main():
    tenant = Credentials(app_id=os.environ["RBIM_APP_ID"], app_token=os.environ["RBIM_APP_TOKEN"])
    async with AsyncExitStack() as stack:
        clients = await clients_of({"a": tenant, "b": tenant}, os.environ["RBIM_BASE_URL"], stack)
        group = await clients["a"].groups.create(name="客户交流", type=GroupType.VIP)
        found = await clients["b"].groups.detail(group_id=group.group_id)
        print(found.name, len({each._shared.transport for each in clients.values()}))

anyio.run(main)
"""


def rows(heading):
    table = re.search(r"^\|.*?\n\n", PAGE[PAGE.index(f"\n## {heading}\n") :], flags=re.MULTILINE | re.DOTALL)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:] if line]


def options(module):
    """Return the options of a transport with their defaults: its own, and those of all but ``uds`` of aiohttp's."""
    made = getattr(importlib.import_module(f"rbim.transports.{module}"), TRANSPORTS[module][0])
    parameters = {**inspect.signature(BaseTransport).parameters, **inspect.signature(made).parameters}
    missing = {"options", "uds"} if module == "aiohttp" else {"options"}
    return {name: parameter.default for name, parameter in parameters.items() if name not in missing}


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(USE, "客户交流\n", id="using one"),
        pytest.param(SESSION, "", id="over a session of aiohttp"),
        pytest.param(SHARE + BY_TWO, "客户交流 1\n", id="sharing one"),
        pytest.param(WRITE, "{'200': 1, 'slow': 0}\n", id="writing one"),
        pytest.param(TRY, f"{len(CASES)} of {len(CASES)} passed\n", id="testing it"),
    ],
)
def test_a_program_runs(program, printed, platform, tmp_path):
    (tmp_path / "counting.py").write_text(WRITE, encoding="utf-8")
    assert run_program(program, tmp_path, platform) == printed


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_transport_over_pyreqwest_passes_the_suite_but_for_the_cases_that_are_named():
    page: dict[str, Any] = {"__name__": "pyreqwest_transport"}
    exec(PYREQWEST, page)
    subject = Conformance(page["PyreqwestTransport"], proxy=True, bundle=True, looks=False, cancels=False)
    named = re.findall(r"^- `(.*)`", page["__doc__"], re.MULTILINE)
    patterns = {re.escape(name).replace(r"\.\.\.", ".*") for name in named}
    failing = await failures(subject, at_once=16)
    failing = await failures(subject, [case for case in CASES if case.name in failing])  # without the load of the others
    assert {pattern for name in failing for pattern in patterns if re.fullmatch(pattern, name)} == patterns
    assert [name for name in failing if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
    assert {"Unanswered" in str(failure) for failure in failing.values()} == {True}


def test_the_table_of_transports_is_what_the_suite_is_told():
    named = {cells[1].strip("`"): cells for cells in rows("Choosing a transport")}
    assert named.keys() == TRANSPORTS.keys()
    for module, (name, features, loops) in TRANSPORTS.items():
        title, _, needs, on, tls, proxies, unix, newest = named[module]
        assert title == f"`{name}`"
        extra = {"auto": "nothing more", "httpx": "nothing more", "asyncio": "nothing more; `rbim[fast]` is faster"}.get(
            module, f"`rbim[{module}]`"
        )
        assert needs == extra
        assert set(on.split(", ")) == {"uvloop" if loop is UVLOOP else loop for loop in loops}
        assert tls == "yes"
        assert ("http" in proxies) == features.get("proxy", False)
        assert unix == ("yes" if "uds" in options(module) else "no")
        assert newest == ("yes" if features.get("lifo", True) else "no")


def test_the_table_of_options_is_the_constructors():
    told = {cells[0].strip("`"): cells[1:] for cells in rows("Options")}
    taken = {}
    for module in TRANSPORTS:
        for name, default in options(module).items():
            taken.setdefault(name, {})[module] = default
    assert told.keys() == taken.keys()
    for name, (default, meaning) in told.items():
        assert {repr(value) for value in taken[name].values()} == {default.strip("`")}
        only = {module for module, (title, *_) in TRANSPORTS.items() if f"`{title}`" in meaning}
        assert taken[name].keys() == (only or taken[name].keys())
        assert "only" in meaning or name == "uds" or taken[name].keys() == TRANSPORTS.keys()
