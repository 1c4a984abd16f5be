"""Random sequences of the ten group operations, on the wire, against a small model that shares no code with the emulator.

The model knows the interface description and the choices of the dialect; it is made of dicts of texts, as the wire is.
"""

import base64
import hashlib
import json
import re
from random import Random

import pytest
from hypothesis import HealthCheck, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from helpers.credentials import APP_ID, TOKEN
from rbim import Credentials
from rbim.emulator import EmulatedClock, Emulator, Rules

pytestmark = pytest.mark.no_cover  # long, and other tests run the same lines
STAMP = "20260102110405"  # an EmulatedClock's first moment, in UTC+8
SIGNED = {"sig": hashlib.md5(f"{APP_ID}{TOKEN}{STAMP}".encode()).hexdigest().upper()}
HEADERS = {"Authorization": base64.b64encode(f"{APP_ID}:{STAMP}".encode()).decode()}

LIMIT = {"0": 100, "1": 300, "2": 500, "3": 1000, "4": 2000}
TEXTS = {
    "CreateGroup": {"name": 50, "declared": 200},
    "ModifyGroup": {"name": 50, "declared": 200},
    "JoinGroup": {"declared": 50},
    "InviteJoinGroup": {"declared": 50},
}
MALFORMED, FORBIDDEN, MISSING, FULL = "900400", "900403", "900404", "900409"
NOT_MEMBER, ALREADY_MEMBER = "560072", "590017"
NEVER_LOGGED_IN = ("新人",)
ACCOUNTS = ("admin", "1001", "1002", "张三", *NEVER_LOGGED_IN)
OPERATIONS = (
    *("CreateGroup", "ModifyGroup", "DeleteGroup", "SearchPublicGroups", "QueryGroupDetail", "JoinGroup"),
    *("InviteJoinGroup", "DeleteGroupMember", "LogoutGroup", "SetMemberRole"),
)


class No(Exception):
    """The platform is to refuse with this code."""


class Model:
    """What the description says, and what the dialect decides where it says nothing."""

    def __init__(self, *, member_fails, overflow_fails, roles):
        self.member_fails, self.overflow_fails, self.roles = member_fails, overflow_fails, roles
        self.groups = {}

    def answer(self, operation, body):
        """Return the answer without its status code, or raise No. A new group's id is the caller's to find out."""
        for name, limit in TEXTS.get(operation, {}).items():
            if len(body.get(name, "")) > limit:
                raise No(MALFORMED)
        actor = body.get("userName", "admin")
        if operation == "CreateGroup":
            return self.create(body, actor)
        if operation == "SearchPublicGroups":
            return self.search(body)
        if operation == "InviteJoinGroup" and len(listed(body)) > 50:
            raise No(MALFORMED)
        if body["groupId"] not in self.groups:
            raise No(MISSING)
        rules = {
            "ModifyGroup": self.modify,
            "DeleteGroup": self.delete,
            "QueryGroupDetail": self.detail,
            "JoinGroup": self.join,
            "InviteJoinGroup": self.invite,
            "DeleteGroupMember": self.remove,
            "LogoutGroup": self.leave,
            "SetMemberRole": self.set_role,
        }
        return rules[operation](self.groups[body["groupId"]], body, actor) or {}

    def create(self, body, actor):
        kind = str(body["type"])
        target = body.get("target", "1")
        if target == "0" and kind in "34":
            kind = "2"
        return {
            "name": body["name"],
            "type": kind,
            "permission": body.get("permission", "0"),
            "target": target,
            "declared": body.get("declared", ""),
            "groupDomain": body.get("groupDomain"),
            "members": {actor: "0"},
            "invited": set(),
            "applied": set(),
        }

    def search(self, body):
        found = {key: group for key, group in self.groups.items() if group["permission"] != "2"}
        if "groupId" in body:
            found = {key: group for key, group in found.items() if key == body["groupId"]}
        elif "name" in body and re.fullmatch("[0-9]+|[A-Za-z]+", body["name"]):
            found = {key: group for key, group in found.items() if group["name"] == body["name"]}
        elif "name" in body:
            found = {key: group for key, group in found.items() if body["name"] in group["name"]}
        rows = [
            {"groupId": key, "count": str(len(group["members"])), **{k: group[k] for k in ("name", "type", "permission")}}
            for key, group in found.items()
        ]
        return {"groups": {"group": rows[0] if len(rows) == 1 else rows} if rows else {}}

    def may(self, group, actor, *roles):
        if self.roles and group["members"].get(actor) not in roles:
            raise No(FORBIDDEN)

    def modify(self, group, body, actor):
        self.may(group, actor, "0", "1")
        group |= {key: body[key] for key in ("name", "declared", "groupDomain", "permission") if key in body}
        if "permission" not in body:
            group["permission"] = "0"

    def delete(self, group, body, actor):
        self.may(group, actor, "0")
        del self.groups[body["groupId"]]

    def detail(self, group, _body, _actor):
        texts = {key: group[key] for key in ("name", "target", "type", "groupDomain") if group[key]}
        texts["declared"] = group["declared"]  # required, also if it is empty
        (owner,) = (account for account, role in group["members"].items() if role == "0")
        shown = "1" if group["permission"] == "2" else group["permission"]
        facts = {"owner": owner, "count": str(len(group["members"])), "dateCreated": "2026-1-2 11:4:5", "permission": shown}
        return texts | facts

    def join(self, group, _body, actor):
        if actor in group["members"]:
            raise No(ALREADY_MEMBER)
        if group["permission"] == "2":
            raise No(FORBIDDEN)
        if len(group["members"]) == LIMIT[group["type"]]:
            raise No(FULL)
        if group["permission"] == "1":
            group["applied"].add(actor)
        else:
            come(group, actor)

    def invite(self, group, body, actor):
        self.may(group, actor, "0", "1")
        fails, coming = [], []
        for account in dict.fromkeys(listed(body)):
            if account in NEVER_LOGGED_IN:
                fails.append((account, "never logged in"))
            elif account in group["members"]:
                fails += [(account, "already")] if self.member_fails else []
            elif body.get("confirm") == "0" or len(group["members"]) + len(coming) < LIMIT[group["type"]]:
                coming.append(account)
            elif self.overflow_fails:
                fails.append((account, "full"))
            else:
                raise No(FULL)
        for account in coming:
            if body.get("confirm") == "0":
                group["invited"].add(account)
            else:
                come(group, account)
        return {"fails": fails} if fails else {}

    def remove(self, group, body, actor):
        self.may(group, actor, "0", "1")
        gone = [account for account in dict.fromkeys(listed(body)) if account in group["members"]]
        if not gone:
            raise No(NOT_MEMBER)
        self.go(body["groupId"], *gone)

    def leave(self, group, body, actor):
        if actor not in group["members"]:
            raise No(NOT_MEMBER)
        self.go(body["groupId"], actor)

    def go(self, group_id, *accounts):
        """Let accounts leave: whoever follows the creator or an administrator came first of those next below who stay."""
        members = self.groups[group_id]["members"]
        for role in [members.pop(account) for account in accounts]:
            follow = {"0": ("1", "2"), "1": ("2",), "2": ()}[role]
            heirs = [heir for below in follow for heir, has in members.items() if has == below]
            if heirs:
                members[heirs[0]] = role
        if not members:
            del self.groups[group_id]

    def set_role(self, group, body, actor):
        self.may(group, actor, "0")
        members, account, role = group["members"], body["member"], body["role"]
        if account not in members:
            raise No(NOT_MEMBER)
        (owner,) = (each for each, has in members.items() if has == "0")
        if role == "0":
            members[owner] = "2"
        elif account == owner:
            raise No(FORBIDDEN)
        members[account] = role


def listed(body):
    members = body["members"]
    return members["member"] if isinstance(members, dict) else members


def come(group, account):
    group["members"][account] = "2"
    group["invited"].discard(account)
    group["applied"].discard(account)


NAMES = ("公告 2", "产品公告", "abc", "abcd", "123", "é", "éa", "🎉" * 50, "群" * 51)
TERMS = ("公告", "abc", "ab", "123", "12", "é", " ", "ABC", "🎉" * 51)
ANNOUNCEMENTS = ("欢迎", "", "公" * 51, "🎉" * 200, "🎉" * 201)
REASONS = ("让我进", "来吧", "🎉" * 50, "🎉" * 51)
KINDS = ("0", "0", 1, "2", "3", "4")  # some clients send numbers


class Clerk:
    """Writes requests at random, about the groups and the members that there are, and about such as there are not."""

    def __init__(self, random, groups, gone):
        self.pick, self.flip = random.choice, lambda share=0.5: random.random() < share
        self.some = lambda values, most: random.choices(values, k=random.randint(1, most))
        here = list(groups) if self.flip(0.9) else []
        self.group_id = self.pick([*here[:1] * 2, *here] or gone)
        self.members = list(groups.get(self.group_id, {}).get("members", ["1001"]))

    def who(self):
        return self.pick([*ACCOUNTS, *self.members[:4]])

    def whom(self):
        there = [*ACCOUNTS, *self.members[:4]]
        strangers = [each for each in (f"m{n}" for n in range(len(self.members) + 51)) if each not in self.members]
        members = self.some(there, 6) if self.flip(0.7) else strangers[: self.pick([1, 30, 49, 50, 51])]
        return {"member": members} if self.flip() else members

    def request(self, operation):
        """Return a body: what is required always, what is optional half of the time, the acting account too."""
        group, required, optional = {"groupId": self.group_id}, {}, {}
        if operation == "CreateGroup":
            group, required = {}, {"name": self.pick(NAMES), "type": self.pick(KINDS)}
            optional = {"target": self.pick("01")} | self.permitted()
        elif operation == "ModifyGroup":
            required, optional = {"name": self.pick(NAMES)}, self.permitted()
        elif operation == "SearchPublicGroups":
            group, optional = {}, group | {"name": self.pick(TERMS)}
        elif operation == "JoinGroup":
            optional = {"declared": self.pick(REASONS)}
        elif operation == "InviteJoinGroup":
            required, optional = {"members": self.whom()}, {"confirm": self.pick("01"), "declared": self.pick(REASONS)}
        elif operation == "DeleteGroupMember":
            required = {"members": self.whom()}
        elif operation == "SetMemberRole":
            required = {"member": self.who(), "role": self.pick("012")}
        optional |= {"userName": self.who()}
        return group | required | {name: value for name, value in optional.items() if self.flip()}

    def permitted(self):
        return {
            "permission": self.pick("012"),
            "declared": self.pick(ANNOUNCEMENTS),
            "groupDomain": self.pick(["a=1", '{"b": 2}']),
        }


class Groups(RuleBasedStateMachine):
    """Asks the emulator and the model the same, step by step."""

    roles = False
    steps = 0
    refusals: set[str] = set()  # noqa: RUF012  # of a whole run

    @initialize(member_fails=st.booleans(), overflow_fails=st.booleans(), crowd=st.sampled_from([99, 0, 96, 97]))
    def begin(self, member_fails, overflow_fails, crowd):
        rules = Rules(invited_member_fails=member_fails, overflow_fails=overflow_fails)
        credentials = Credentials(app_id=APP_ID, app_token=TOKEN)
        self.emulator = Emulator(credentials=credentials, clock=EmulatedClock(), rules=rules, check_roles=self.roles)
        self.emulator.never_logged_in(*NEVER_LOGGED_IN)
        self.model = Model(member_fails=member_fails, overflow_fails=overflow_fails, roles=self.roles)
        self.known = []
        self.ask("CreateGroup", {"name": "公告 2", "type": "0"})
        self.ask("InviteJoinGroup", {"groupId": self.known[0], "members": ["1001", "张三"]})
        self.ask("SetMemberRole", {"groupId": self.known[0], "member": "张三", "role": "1"})
        for at in range(0, crowd, 50):
            self.ask("InviteJoinGroup", {"groupId": self.known[0], "members": [f"m{n}" for n in range(crowd)][at : at + 50]})
        self.ask("InviteJoinGroup", {"groupId": self.known[0], "members": ["1002"], "confirm": "0"})
        self.ask("JoinGroup", {"groupId": self.known[0], "userName": "1002"})

    @rule(random=st.integers(0, 2**64).map(Random), times=st.integers(1, 9))
    def ask_anything(self, random, times):
        for _ in range(times):
            operation = random.choice(OPERATIONS[len(self.model.groups) > 3 :])  # enough groups? then no more of them
            gone = ["nowhere", *(each for each in self.known if each not in self.model.groups)]
            self.ask(operation, Clerk(random, self.model.groups, gone).request(operation))
            self.look()

    def ask(self, operation, document):
        note(f"{operation} {document}")
        answer, expected = self.step(operation, document)
        if expected is None:
            return
        if operation == "CreateGroup":
            (group_id,) = answer.values()
            assert group_id not in self.known
            self.known.append(group_id)
            self.model.groups[group_id] = expected
            return
        fails = zip(answer.pop("fails", []), expected.pop("fails", []), strict=True)
        assert all(told["member"] == account and why in told["reason"] for told, (account, why) in fails)
        assert answer == expected

    def step(self, operation, document):
        """Take one step and compare; return the answer, and what the model says of it (None: a refusal)."""
        type(self).steps += 1
        answer = self.asked(operation, document)
        expected, code = None, "000000"
        try:
            expected = self.model.answer(operation, document)
        except No as refusal:
            code = str(refusal)
            self.refusals.add(f"{operation} {code}")
        assert answer.pop("statusCode") == code
        if expected is None:
            assert list(answer) == ["statusMsg"]
        return answer, expected

    def asked(self, operation, document):
        path = f"/2013-12-26/Application/{APP_ID}/IM/Group/{operation}"
        served = self.emulator.platform.serve("POST", path, SIGNED, HEADERS, json.dumps(document).encode())
        assert served.response.status == 200
        return json.loads(served.response.body)

    @invariant()
    def look(self):
        """Check what holds after each step: capacity, one creator, counts, and that all is as the model has it."""
        shown = self.asked("SearchPublicGroups", {})["groups"].get("group", [])
        counts = {row["groupId"]: row["count"] for row in (shown if isinstance(shown, list) else [shown])}
        for key, group in self.emulator.state.groups.items():
            assert 1 <= len(group.members) <= LIMIT[group.type]
            assert list(group.members.values()).count("0") == 1
            count = str(len(group.members))
            assert self.asked("QueryGroupDetail", {"groupId": key})["count"] == count
            assert counts.get(key) == (None if group.permission == "2" else count)
            expected = self.model.groups[key]
            assert list(group.members.items()) == list(expected["members"].items())
            assert (set(group.invited), set(group.applied)) == (expected["invited"], expected["applied"])
            assert group.permission == expected["permission"]
        assert self.emulator.state.groups.keys() == self.model.groups.keys()


class GroupsWithRoles(Groups):
    """The same, of a platform that checks roles."""

    roles = True
    refusals: set[str] = set()  # noqa: RUF012


# Refusals that every run meets; that they are met shows that the sequences lead somewhere.
MET = {
    *(f"{name} {MISSING}" for name in ("ModifyGroup", "DeleteGroup", "QueryGroupDetail", "JoinGroup", "InviteJoinGroup")),
    *(f"{name} {MALFORMED}" for name in ("CreateGroup", "ModifyGroup", "InviteJoinGroup")),
    f"JoinGroup {ALREADY_MEMBER}",
    f"JoinGroup {FULL}",
    f"LogoutGroup {NOT_MEMBER}",
    f"DeleteGroupMember {NOT_MEMBER}",
    f"SetMemberRole {NOT_MEMBER}",
}
MET_WITH_ROLES = MET | {f"{name} {FORBIDDEN}" for name in ("ModifyGroup", "DeleteGroup", "InviteJoinGroup")}


def run(machine, examples):
    before = machine.steps
    plain = settings(max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=plain)
    return machine.steps - before


@pytest.mark.parametrize(("machine", "met"), [(Groups, MET), (GroupsWithRoles, MET_WITH_ROLES)], ids=["no roles", "roles"])
def test_thousands_of_random_steps_agree_with_an_independent_model(machine, met):
    assert run(machine, 20) > 2000  # about 4,500: a sequence has some 50 rules of one to nine steps each
    for _ in range(5):  # now and then chance leaves one of them out
        if machine.refusals >= met:
            break
        run(machine, 20)
    assert machine.refusals >= met
