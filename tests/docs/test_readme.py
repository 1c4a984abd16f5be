"""The README's tables are those of the code, and its commands those of CI; its programs are run by ``test_docs.py``.

The Chinese one says the same: code, tables, headings and links are compared.
"""

import os
import re
from pathlib import Path

import pytest

from helpers.pages import FENCE, blocks_of, run_newcomer
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


# ------------------------------------------------------------------------------------- in Chinese


def prose(text):
    return FENCE.sub("", text)


def rows(text):
    """Return the tables' rows, each as the code and the links in each of its cells."""
    lines = [line for line in prose(text).splitlines() if line.startswith("|")]
    return [[re.findall(r"`[^`]+`", cell) for cell in line.strip("|").split(" | ")] for line in lines]


def links(page):
    """Return where a page's links and images lead, in order; those to files as paths from the root."""
    targets = re.findall(r"\]\(([^)]+)\)", prose(READMES[page]))
    folder = Path(page).parent
    return [each if each.startswith("http") else os.path.normpath(folder / each.partition("#")[0]) for each in targets]


def test_the_code_is_the_same():
    english, chinese = ([(block.language, block.text) for block in blocks_of(page)] for page in READMES)
    assert english == chinese


def test_the_tables_are_the_same():
    assert rows(README) == rows(CHINESE)


def test_the_headings_are_as_many_and_as_deep():
    english, chinese = (re.findall(r"^(#+) ", prose(text), re.MULTILINE) for text in READMES.values())
    assert english == chinese
    assert not re.findall(r"^#+ [\x00-\x7f]+$", prose(CHINESE), re.MULTILINE)[1:]  # but for the name


def test_the_code_in_sentences_is_the_same():
    """The same names, flags and numbers, whatever the order of the words."""
    english, chinese = (sorted(set(re.findall(r"`[^`]+`", prose(text).replace("\n", " ")))) for text in READMES.values())
    assert english == chinese


def test_the_links_are_the_same_and_lead_somewhere():
    english, chinese = (links(page) for page in READMES)
    assert english[0] == "docs/README.zh.md"
    assert chinese[0] == "README.md"
    assert english[1:] == chinese[1:]
    missing = [each for each in {*english, *chinese} if not each.startswith("http") and not (ROOT / each).exists()]
    assert missing == []


def test_chinese_paragraphs_are_lines():
    """A line break between two Chinese characters is shown as a space."""
    text = prose(CHINESE)
    assert re.findall(r"[^\n]*[\u3000-\uffef]\n[^\n|#!-][^\n]*", text) == []  # a list has a line for each item
    assert re.findall(r"[\u4e00-\u9fff][,;:?!](?![\w/])", text) == []  # ASCII punctuation after a Chinese character
