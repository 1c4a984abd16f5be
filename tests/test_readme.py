"""The README's tables are those of the code, and its commands those of CI; its programs are run by ``test_docs.py``."""

import re

from pages import ROOT, blocks_of

from rbim import catalogue

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_operations_is_the_catalogues():
    assert catalogue.markdown() in README


def test_ci_runs_the_two_commands_that_stand_alone_in_their_blocks():
    commands = [block.text.strip() for block in blocks_of("README.md", "sh")]
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
