"""The README's tables are those of the code, and its commands those of CI; its programs are run by ``test_docs.py``."""

import re

import pytest

from helpers.pages import blocks_of, run_newcomer
from helpers.paths import ROOT
from rbim.operations import catalogue

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "docs" / "README.zh.md").read_text(encoding="utf-8")
READMES = {"README.md": README, "docs/README.zh.md": CHINESE}
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_table_of_operations_is_the_catalogues():
    assert catalogue.markdown() in README


@pytest.mark.parametrize("page", READMES)
def test_ci_runs_the_two_commands_that_stand_alone_in_their_blocks(page):
    commands = [block.text.strip() for block in blocks_of(page, "sh") if "rbim emulator &" not in block.text]
    assert len(commands) == 2
    assert commands == [line for line in READMES[page].splitlines() if line.startswith("python -m pip install")]
    assert "grep -E '^python -m pip install' README.md" in SCRIPT


def test_the_table_of_errors_names_only_what_exists():
    from rbim import errors

    rows = re.findall(r"^\| (`.*?) \|", README[README.index("| error |") :], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= set(errors.__all__)
    assert set(errors.__all__) - named == {"Attempt", "Outcome", "RbimError", "TransportError", "CallbackRejected"}


# -------------------------------------------------------------------------------- a newcomer's path


@pytest.mark.parametrize("page", READMES)
def test_a_newcomer_has_a_group_after_five_commands(page, tmp_path):
    """The first two of them, which make an environment and install into it, are run by CI alone."""
    [block] = [block for block in blocks_of(page, "sh") if "rbim emulator &" in block.text]
    commands = block.text.splitlines()
    assert len(commands) == 5
    assert [command.split()[0] for command in commands] == ["python3", "pip", "export", "rbim", "rbim"]
    out = run_newcomer(commands[2:], tmp_path)
    assert re.search(r"^group_id +g8\d{13}$", out, re.MULTILINE)


def test_ci_takes_a_newcomers_commands_from_both_readmes_and_times_them():
    assert "newcomer README.md" in SCRIPT
    assert "newcomer docs/README.zh.md" in SCRIPT
    assert "120" in SCRIPT
