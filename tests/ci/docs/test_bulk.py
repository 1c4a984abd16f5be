"""The page on jobs: its programs run, its queries answer, and its tables say what the code says."""

import re
import sqlite3
from contextlib import closing

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import ROOT
from rbim.bulk.journal.schema import JOURNAL

PAGE = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")
PROGRAMS = [block.text for block in blocks_of("docs/bulk.md", "python")]
QUERIES = [block.text for block in blocks_of("docs/bulk.md", "sql")]
PRINTED = ["1500 of 1500\n1500 0 0\n", "20\n"]


@pytest.mark.parametrize(("program", "printed"), [*zip(PROGRAMS, PRINTED, strict=True)])
def test_a_program_runs_and_its_journal_answers_the_queries(program, printed, platform, tmp_path):
    assert run_program(program, tmp_path, platform) == printed
    for journal in tmp_path.glob("*.journal"):
        assert journal.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(journal)) as file:
            not_invited, throughput = (file.execute(query).fetchall() for query in QUERIES)
            ((accounts,),) = file.execute("SELECT count(*) FROM accounts")
        assert not_invited == []
        assert sum(row[1] for row in throughput) == accounts


def test_the_pages_table_of_columns_is_the_schemas():
    with closing(sqlite3.connect(":memory:")) as file:
        for statement in JOURNAL.schema:
            file.execute(statement)
        for view in ("accounts", "requests"):
            row = re.search(rf"^\| `{view}` \| (.*) \|$", PAGE, flags=re.MULTILINE)[1]
            named = re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", row))
            assert named == [column for _, column, *_ in file.execute(f"PRAGMA table_info({view})")]
    assert f"now {JOURNAL.version}. Journals of other versions are refused" in PAGE
