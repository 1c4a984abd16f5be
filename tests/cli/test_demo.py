"""``rbim demo``: its figures, and what it says of a platform that does not do as it answers."""

from __future__ import annotations

import json
import re

from rbim import InviteJoinGroup, QueryGroupDetail
from rbim.cli import Exit, run
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault, InvalidJson


def figures_of(out):
    return json.loads(out.splitlines()[-1])


def demo(*tokens):
    return run(["demo", *tokens])


def test_the_demo_invites_5000_accounts_over_http(capsys):
    assert demo("--json") == Exit.DONE

    out, err = capsys.readouterr()
    assert err == ""
    figures = figures_of(out)
    assert figures["accounts"] == {"total": 5000, "invited": 4960, "refused": 40, "failed": 0, "unknown": 0}
    assert figures["requests"] == {"invitations": 100, "sent": 100}
    assert figures["agrees"] is True
    assert figures["seconds"] > 0
    assert figures["accounts_per_second"] > figures["requests_per_second"] > 0
    strangers = {"产品公告": 15, "客户交流": 13, "内部测试": 12}
    sizes = {"产品公告": 1900, "客户交流": 1700, "内部测试": 1400}
    assert {group["name"]: sizes[group["name"]] - group["holds"] + 1 for group in figures["groups"]} == strangers
    assert {group["name"]: sum(group["reasons"].values()) for group in figures["groups"]} == strangers


def test_plain_tables_where_there_is_no_terminal(capsys):
    assert demo() == Exit.DONE

    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    table = [line.split() for line in out.splitlines() if line.startswith(("产品公告", "客户交流", "内部测试"))]
    assert table[0] == ["产品公告", "vip", "(2,000)", "1,900", "1,885", "15", "0", "0", "1,886"]
    assert "5,000 accounts: 4,960 invited, 40 refused, 0 failed, 0 unknown." in out
    assert re.search(r"^100 requests in \d+\.\d\d s: [\d,]+ accounts/s, [\d,]+ requests/s\.$", out, re.MULTILINE)


class Troubled(Emulator):
    """Loses the answers to invitations of group b, refuses those of group c, and hides what group d holds."""

    def __init__(self, **options):
        super().__init__(**options)

        def about(name):
            return lambda op: self.state.groups[op.group_id].name == name

        self.faults.add(
            Fault(effect=InvalidJson(), operation=InviteJoinGroup, match=about("b")),
            Fault(effect=Code("900403", "not [today]"), operation=InviteJoinGroup, match=about("c")),
            Fault(effect=Code("900404"), operation=QueryGroupDetail, match=about("d")),
        )


def test_figures_that_do_not_agree_are_complained_of(monkeypatch, capsys):
    monkeypatch.setattr("rbim.cli.demo.Emulator", Troubled)
    monkeypatch.setattr("rbim.cli.demo.EXAMPLE", dict.fromkeys("abcd", 3))

    assert demo("--json") == Exit.REFUSED

    out, err = capsys.readouterr()
    figures = figures_of(out)
    assert figures["accounts"] == {"total": 12, "invited": 6, "refused": 0, "failed": 3, "unknown": 3}
    assert figures["agrees"] is False
    assert figures["requests"]["sent"] > figures["requests"]["invitations"] == 4
    reasons = ["".join(group["reasons"]) for group in figures["groups"]]
    assert reasons[1].startswith("ProtocolError: HTTP 200, not JSON at character ")
    assert [reasons[0], *reasons[2:]] == ["", "ApiError: code 900403: not [today]", ""]
    assert err.splitlines() == [
        "rbim: b has 4 members, expected 1 (the invited accounts and the owner)",
        "rbim: d has an unknown number of members, expected 4 (the invited accounts and the owner)",
    ]

    assert demo() == Exit.REFUSED
    assert "not [today]" in capsys.readouterr().out
