"""A newcomer's path, as the READMEs and the quick start show it, works; CI times it."""

import re

import pytest

from helpers.pages import blocks_of, run_newcomer, run_program
from helpers.paths import ROOT

READMES = ["README.md", "docs/README.zh.md"]
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", READMES)
def test_ci_runs_the_two_commands_that_stand_alone_in_their_blocks(page):
    commands = [block.text.strip() for block in blocks_of(page, "sh") if "rbim emulator &" not in block.text]
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert len(commands) == 2
    assert commands == [line for line in lines if line.startswith("python -m pip install")]
    assert "grep -E '^python -m pip install' README.md" in SCRIPT
    assert "newcomer README.md" in SCRIPT  # the others have the same commands, as the next test sees


def test_a_newcomer_has_a_group_after_five_commands(tmp_path):
    """The first two of them, which make an environment and install into it, are run by CI's script."""
    pages = [*READMES, "docs/quickstart.md"]
    shown = [block.text for page in pages for block in blocks_of(page, "sh") if "rbim emulator" in block.text]
    assert len(shown) == 3
    assert len({tuple(line.replace(" --port 8883", "") for line in text.splitlines()[2:]) for text in shown}) == 1
    commands = shown[0].splitlines()
    assert len(commands) == 5
    assert [command.split()[0] for command in commands[2:]] == ["export", "rbim", "rbim"]
    assert re.search(r"g8\d{13}", run_newcomer(commands[2:], tmp_path))


DELIVERY = """
import anyio
from rbim.config import credentials_from_env
from rbim.emulator import Emulator

async def main():
    emulator = Emulator(credentials=credentials_from_env())
    async with receiver, SqliteInbox("events.db") as inbox:
        emulator.copy_to(receiver)
        emulator.say("1001", "1002", "你好")
        await emulator.deliver()
        while (await inbox.counts()).waiting:
            await anyio.sleep(0.01)

anyio.run(main)
"""


def test_the_readmes_receiver_prints_what_is_said(tmp_path):
    (program,) = (block.text for block in blocks_of("README.md", "python") if block.title == "A receiver")
    out = run_program(program + DELIVERY, tmp_path, {"RBIM_APP_ID": "demo", "RBIM_APP_TOKEN": "demo"})
    assert out == "1001 TEXT 你好\n"
