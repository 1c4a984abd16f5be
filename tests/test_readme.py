"""What the README shows is what runs: its Python blocks, its table, its commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import platform_of_a_reader

from rbim import catalogue

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]


def title(block: str) -> str:
    """Name a block by the heading it stands under."""
    return re.findall(r"^#+ (.*)$", README[: README.index(block)], flags=re.MULTILINE)[-1]


@pytest.fixture(scope="module")
def environment():
    """The environment variables of a reader whose platform is the emulator, served over HTTP."""
    with platform_of_a_reader() as variables:
        yield variables


EXPECTED = {
    "A client": r"产品公告 3 20\d\d-",
    "Many at once": r"",
    "Half a million invitations": r"(running \d+ of 1900\n)+ended 1900 of 1900\n1900 0 0\n",
    "When it fails": r"",
    "From code that is not asynchronous": r"\['g8\d+'\]",
    "Operations of one's own": r"900501 .*QueryGroupMembers",
    "Message copies": r"1001 TEXT 你好\n",
    "Without the platform": r"",
}


def test_every_python_block_has_its_expectation():
    assert [title(block) for block in PYTHON] == list(EXPECTED)


@pytest.mark.parametrize("block", PYTHON, ids=map(title, PYTHON))
def test_a_python_block_runs_as_a_program(block, environment, monkeypatch, tmp_path):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = EXPECTED[title(block)]
    assert re.match(expected, done.stdout) if expected else done.stdout == ""


def test_the_table_of_operations_is_the_catalogues():
    assert catalogue.markdown() in README


def test_ci_runs_the_two_commands_that_stand_alone_in_their_blocks():
    commands = [text.strip() for language, text in BLOCKS if language == "sh"]
    assert len(commands) == 2
    assert all(command.startswith("python -m pip install ") and "\n" not in command for command in commands)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "grep -E '^python -m pip install' README.md" in script


def test_the_table_of_errors_names_only_what_exists():
    from rbim import errors

    rows = re.findall(r"^\| (`.*?) \|", README[README.index("| error |") :], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= set(errors.__all__)
    assert set(errors.__all__) - named == {"Outcome", "RbimError", "TransportError", "CallbackRejected"}
