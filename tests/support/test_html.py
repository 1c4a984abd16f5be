"""Answers and reports in notebooks: tables that show what the repr shows, escaped and bounded."""

from html.parser import HTMLParser

import attrs
import pytest
from attrs import field, frozen
from IPython.core.formatters import DisplayFormatter

from helpers.jobs import World
from rbim import Created, GroupDetail, GroupFound, GroupsFound, GroupType, Invited, Success
from rbim._support.html import table_html
from rbim.bulk.job import InviteJob
from rbim.operations.base import Answer
from rbim.operations.call_tasks import CallTaskCreated
from rbim.operations.catalogue import entries
from rbim.operations.fails import Fail

HOSTILE = '<script>alert("1")</script>&amp;\x1b[31m'


class Read(HTMLParser):
    """The cells of every table, in order; checks that what is opened is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.cells, self.rows = [], set(), [], 0
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        del attrs
        self.open.append(tag)
        self.tags.add(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def shown(value):
    """Return what a notebook would show, by IPython's own formatter."""
    data, _ = DisplayFormatter().format(value)
    return Read(data["text/html"])


def test_a_detail_is_a_table_of_its_fields():
    detail = GroupDetail(name="公告", owner="u1", count=3, type=GroupType.VIP)
    read = shown(detail)
    assert read.cells[0] == "GroupDetail"
    pairs = dict(zip(read.cells[1::2], read.cells[2::2], strict=False))
    assert pairs["name"] == "公告"
    assert {each.name for each in attrs.fields(GroupDetail)} <= set(read.cells)
    assert {"u1", "3", "VIP"} <= set(read.cells)


def test_groups_are_rows_with_a_column_for_each_field():
    found = GroupsFound(groups=[GroupFound(group_id=f"g{number}", name=f"n{number}") for number in range(3)])
    read = shown(found)
    for number in range(3):
        assert {f"g{number}", f"n{number}"} <= set(read.cells)
    assert read.cells.count("group_id") == 1


def test_long_lists_are_cut_and_say_how_much_is_left_out():
    invited = Invited(invited=tuple(f"u{number}" for number in range(1234)))
    read = shown(invited)
    assert [cell for cell in read.cells if cell.startswith("u") and cell[1:].isdigit()] == [f"u{n}" for n in range(50)]
    assert "… and 1,184 more" in read.cells
    exactly = shown(Invited(invited=tuple(f"u{number}" for number in range(50))))
    assert not any("more" in cell for cell in exactly.cells)


@pytest.mark.parametrize(
    "answer",
    [
        Success(extra={HOSTILE: HOSTILE}),
        Created(group_id=HOSTILE),
        GroupsFound(groups=[GroupFound(name=HOSTILE, type=HOSTILE)]),
        Invited(fails=(Fail(account=HOSTILE, reason=HOSTILE),)),
        CallTaskCreated(task_id=HOSTILE),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_foreign_text_is_escaped(answer):
    html = answer._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    read = Read(html)
    assert read.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert any('<script>alert("1")</script>&amp;' in cell for cell in read.cells)


def test_every_answer_has_a_table():
    answers = {entry.operation.spec.answer for entry in entries()}
    assert len(answers) >= 5
    assert all(issubclass(answer, Answer) and callable(answer._repr_html_) for answer in answers)


def test_what_the_repr_leaves_out_is_left_out():
    @frozen
    class WithSecret(Answer):
        seen: str
        hidden: str = field(repr=False)

    html = WithSecret("a", "b-secret")._repr_html_()
    assert "seen" in html
    assert "hidden" not in html
    assert "b-secret" not in html


def test_a_value_of_any_depth_and_size_stays_small():
    deep = value = {}
    for _ in range(5_000):
        value["x"] = value = {}
    wide = {f"k{number}": "v" * 10_000 for number in range(10_000)}
    for extra in ({"deep": deep}, wide, {"list": [wide] * 3}):
        html = Success(extra=extra)._repr_html_()
        assert len(html) < 100_000
        Read(html)


async def test_a_report_is_tables_of_its_counts_without_accounts(tmp_path):
    world = World()
    async with world.client:
        group = await world.group()
        job = InviteJob(world.client, journal=tmp_path / "journal", chunk=10, rates=[])
        given = [(group, f"account{number}") for number in range(30)] + [(group, "account0"), (group, "")]
        report = await job.run(given)
    read = shown(report)
    total = report.accounts.total
    assert total == 32
    for name in ("refused", "failed", "unknown", "skipped", "duplicate"):
        at = read.cells.index(name)
        assert read.cells[at + 1] == f"{getattr(report.accounts, name):,}"
    assert {"invited", "30", f"{30 / total:.1%}"} <= set(read.cells)
    names = [each.name for each in attrs.fields(type(report.requests)) if each.name != "latency"]
    names += [each.name for each in attrs.fields(type(report.requests.latency))]
    at = read.cells.index("sent")
    assert read.cells[at : at + len(names)] == names
    assert read.cells[at + len(names)] == f"{report.requests.sent}"
    assert not any("account0" in cell or group in cell for cell in read.cells)


def test_a_value_whose_text_cannot_be_made_is_shown_by_its_class():
    class Silent:
        def __str__(self):
            raise ValueError("no")

    shown = table_html([(1, Silent()), (2, 10**5000)], total=2)
    assert "&lt;Silent&gt;" in shown
    assert "&lt;int&gt;" in shown


def test_tables_inside_tables_are_short():
    inner = [[["x" * 400] * 1000] * 1000] * 1000
    assert len(table_html([(inner,)] * 1000, total=1000)) < 10_000_000
