"""Every shape that the interface description shows in words, as bytes, in both directions.

The bytes are written by hand from the description: no code of rbim makes them. The client must send a request as it stands
here and read its answer; the emulator must read the same request and send the same answer to the byte. The same holds for
message copies, which the emulator sends and a receiver takes. The description gives the keys of a request no order.
"""

import json
from datetime import UTC, date, datetime, time
from hashlib import md5

import httpx
from attrs import evolve, field, frozen

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.emulators import box, choosing
from helpers.stubs import Stub
from helpers.tables import each_row
from rbim import (
    CHINA,
    AsyncClient,
    CallPolicy,
    CreateCallTask,
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    GroupType,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    MembersShape,
    ModifyGroup,
    NoCallPolicy,
    Permission,
    QueryGroupDetail,
    Request,
    Response,
    Role,
    SearchPublicGroups,
    SetMemberRole,
    Target,
    Weekday,
)
from rbim.callbacks import MemorySink, Receiver
from rbim.emulator import EmulatedClock
from rbim.emulator.platform.state import Group

GROUP = "g80000049837291"
NEXT_GROUP = "g80000049837292"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SIG = "544A5DC99CD0AB955605AED360DE7E4A"  # printf %s APP_ID TOKEN STAMP | md5sum | tr a-f A-F
AUTHORIZATION = "YWFmOThmODk0N2I1ZDZjODAxNDdiOGEyYjdjMzAxMjM6MjAyNjAxMDIxMTA0MDU="  # printf %s APP_ID:STAMP | base64 -w0
GROUPS = f"/2013-12-26/Application/{APP_ID}/IM/Group/"
TASKS = f"/api/application/{APP_ID}/aicall/task"
DONE = '{"statusCode":"000000"}'
FOUND = (
    f'{{"statusCode":"000000","groups":{{"group":{{"groupId":"{GROUP}","name":"公告栏","type":"2","count":"3",'
    '"permission":"0"}}}'
)
BARE = (  # details of a group without announcement and extension
    '{"statusCode":"000000","name":"a","owner":"1000","declared":"","count":"2","dateCreated":"2014-10-1 10:5:3",'
    '"permission":"1","target":"0","type":"0"}'
)


@frozen(kw_only=True)
class Shape:
    """One request and its answer, as text and as values; ``choices`` of the dialect where the description has two shapes.

    ``others`` are bodies that a server takes for the same request.
    """

    name: str
    path: str
    body: str
    means: object
    answer: str = DONE
    reads: dict = field(factory=dict)
    extra: dict = field(factory=dict)
    choices: dict = field(factory=dict)
    others: tuple = ()

    def __str__(self):
        return self.name

    @property
    def dialect(self):
        return choosing(**self.choices)["dialect"]


SHAPES = [
    Shape(
        name="CreateGroup with every field",
        path=f"{GROUPS}CreateGroup",
        body=(
            '{"userName":"1000","name":"研发","type":"2","permission":"1","declared":"公告","target":"1",'
            '"groupDomain":"x=1"}'
        ),
        means=CreateGroup(
            user_name="1000",
            name="研发",
            type=GroupType.PAID_500,
            permission=Permission.VERIFIED,
            declared="公告",
            target=Target.GROUP,
            group_domain="x=1",
        ),
        answer=f'{{"statusCode":"000000","groupId":"{NEXT_GROUP}"}}',
        reads={"group_id": NEXT_GROUP},
    ),
    Shape(
        name="CreateGroup with the required fields",
        path=f"{GROUPS}CreateGroup",
        body='{"name":"a","type":"4","permission":"0","target":"1"}',
        means=CreateGroup(name="a", type=GroupType.VIP),
        answer=f'{{"statusCode":"000000","groupId":"{NEXT_GROUP}"}}',
        reads={"group_id": NEXT_GROUP},
        others=('{"name":"a","type":"4"}', ' {"type": "4", "name": "a", "target": "1"}\r\n'),
    ),
    Shape(
        name="CreateGroup of a private discussion group",
        path=f"{GROUPS}CreateGroup",
        body='{"name":"a","type":"0","permission":"2","target":"0"}',
        means=CreateGroup(name="a", type=GroupType.TEMPORARY, permission=Permission.PRIVATE, target=Target.DISCUSSION),
        answer=f'{{"statusCode":"000000","groupId":"{NEXT_GROUP}"}}',
        reads={"group_id": NEXT_GROUP},
    ),
    Shape(
        name="ModifyGroup with every field",
        path=f"{GROUPS}ModifyGroup",
        body=f'{{"userName":"admin","groupId":"{GROUP}","name":"新","permission":"1","declared":"欢迎","groupDomain":"y"}}',
        means=ModifyGroup(
            user_name="admin",
            group_id=GROUP,
            name="新",
            permission=Permission.VERIFIED,
            declared="欢迎",
            group_domain="y",
        ),
    ),
    Shape(
        name="ModifyGroup with the required fields",
        path=f"{GROUPS}ModifyGroup",
        body=f'{{"groupId":"{GROUP}","name":"新"}}',
        means=ModifyGroup(group_id=GROUP, name="新", permission=None),
    ),
    Shape(
        name="DeleteGroup",
        path=f"{GROUPS}DeleteGroup",
        body=f'{{"userName":"admin","groupId":"{GROUP}"}}',
        means=DeleteGroup(user_name="admin", group_id=GROUP),
    ),
    Shape(
        name="SearchPublicGroups by both",
        path=f"{GROUPS}SearchPublicGroups",
        body=f'{{"userName":"1001","groupId":"{GROUP}","name":"别的"}}',
        means=SearchPublicGroups(user_name="1001", group_id=GROUP, name="别的"),
        answer=FOUND,
        reads={"groups": [(GROUP, "公告栏", GroupType.PAID_500, 3, Permission.OPEN)]},
    ),
    Shape(
        name="SearchPublicGroups by id",
        path=f"{GROUPS}SearchPublicGroups",
        body=f'{{"groupId":"{GROUP}"}}',
        means=SearchPublicGroups(group_id=GROUP),
        answer=FOUND,
        reads={"groups": [(GROUP, "公告栏", GroupType.PAID_500, 3, Permission.OPEN)]},
    ),
    Shape(
        name="SearchPublicGroup, as one sample writes the path",
        path=f"{GROUPS}SearchPublicGroup",
        body='{"name":"公告"}',
        means=SearchPublicGroups(name="公告"),
        answer=FOUND,
        reads={"groups": [(GROUP, "公告栏", GroupType.PAID_500, 3, Permission.OPEN)]},
        choices={"singular_search": True},
    ),
    Shape(
        name="QueryGroupDetail",
        path=f"{GROUPS}QueryGroupDetail",
        body=f'{{"userName":"1001","groupId":"{GROUP}"}}',
        means=QueryGroupDetail(user_name="1001", group_id=GROUP),
        answer=(
            '{"statusCode":"000000","name":"公告栏","owner":"admin","declared":"公告","count":"3",'
            '"dateCreated":"2014-1-2 3:4:5","permission":"0","target":"1","type":"2","groupDomain":"x=1"}'
        ),
        reads={
            "name": "公告栏",
            "owner": "admin",
            "declared": "公告",
            "count": 3,
            "date_created": datetime(2014, 1, 2, 3, 4, 5, tzinfo=CHINA),
            "date_created_text": "2014-1-2 3:4:5",
            "permission": Permission.OPEN,
            "target": Target.GROUP,
            "type": GroupType.PAID_500,
            "group_domain": "x=1",
        },
    ),
    Shape(
        name="JoinGroup",
        path=f"{GROUPS}JoinGroup",
        body=f'{{"userName":"1003","groupId":"{GROUP}","declared":"让我进"}}',
        means=JoinGroup(user_name="1003", group_id=GROUP, declared="让我进"),
    ),
    Shape(
        name="JoinGroup with the required fields",
        path=f"{GROUPS}JoinGroup",
        body=f'{{"groupId":"{GROUP}"}}',
        means=JoinGroup(group_id=GROUP),
        choices={"second_join_refused": False},  # the administrator is the one who asks, and a member
    ),
    Shape(
        name="InviteJoinGroup with every field and a failure",
        path=f"{GROUPS}InviteJoinGroup",
        body=(f'{{"userName":"admin","groupId":"{GROUP}","members":["1003","1009"],"confirm":"0","declared":"来吧"}}'),
        means=InviteJoinGroup(
            user_name="admin", group_id=GROUP, members=["1003", "1009"], needs_confirmation=True, declared="来吧"
        ),
        answer='{"statusCode":"000000","fails":[{"member":"1009","reason":"the account has never logged in"}]}',
        reads={"fails": [("1009", "the account has never logged in")]},
    ),
    Shape(
        name="InviteJoinGroup without userName, as its sample",
        path=f"{GROUPS}InviteJoinGroup",
        body=f'{{"groupId":"{GROUP}","members":["1003"],"confirm":"1"}}',
        means=InviteJoinGroup(group_id=GROUP, members=["1003"]),
        reads={"fails": []},
        others=(f'{{"groupId":"{GROUP}","members":["1003"]}}', f'{{"groupId":"{GROUP}","members":{{"member":["1003"]}}}}'),
    ),
    Shape(
        name="InviteJoinGroup with members in an object",
        path=f"{GROUPS}InviteJoinGroup",
        body=f'{{"groupId":"{GROUP}","members":{{"member":["1003","1004"]}},"confirm":"1"}}',
        means=InviteJoinGroup(group_id=GROUP, members=["1003", "1004"]),
        reads={"fails": []},
        choices={"members_shape": MembersShape.NESTED},
        others=(f'{{"groupId":"{GROUP}","members":["1003","1004"]}}',),
    ),
    Shape(
        name="DeleteGroupMember",
        path=f"{GROUPS}DeleteGroupMember",
        body=f'{{"groupId":"{GROUP}","members":["1001","1002"]}}',
        means=DeleteGroupMember(group_id=GROUP, members=["1001", "1002"]),
        others=(f'{{"groupId":"{GROUP}","members":{{"member":["1001","1002"]}}}}',),
    ),
    Shape(
        name="DeleteGroupMember with members in an object",
        path=f"{GROUPS}DeleteGroupMember",
        body=f'{{"userName":"admin","groupId":"{GROUP}","members":{{"member":["1002"]}}}}',
        means=DeleteGroupMember(user_name="admin", group_id=GROUP, members=["1002"]),
        choices={"members_shape": MembersShape.NESTED},
    ),
    Shape(
        name="LogoutGroup",
        path=f"{GROUPS}LogoutGroup",
        body=f'{{"userName":"1002","groupId":"{GROUP}"}}',
        means=LogoutGroup(user_name="1002", group_id=GROUP),
    ),
    Shape(
        name="SetMemberRole",
        path=f"{GROUPS}SetMemberRole",
        body=f'{{"userName":"admin","groupId":"{GROUP}","member":"1002","role":"1"}}',
        means=SetMemberRole(user_name="admin", group_id=GROUP, member="1002", role=Role.ADMINISTRATOR),
    ),
    Shape(
        name="a task with every field",
        path=f"{TASKS}/save",
        body=(
            '{"bot_id":7,"task_name":"回访","task_desc":"一月","start_date":"2026-01-02","end_date":"2026-01-31",'
            '"max_concurrent":10,"min_concurrent":1,"isrecord":1,"disnumber":"02112345678","caller":"4001234567",'
            '"call_policy":[{"type":0,"policy":['
            r'"{\"policy_type\":0,\"policy_name\":\"早\",\"policy_date\":\"00:00:00,09:00:00\"}",'
            r'"{\"policy_type\":1,\"policy_name\":\"周末\",\"policy_date\":\"周六,周日\"}",'
            r'"{\"policy_type\":2,\"policy_name\":\"春节\",\"policy_date\":\"2026-02-16,2026-02-22\"}"]}]}'
        ),
        means=CreateCallTask(
            bot_id=7,
            task_name="回访",
            task_desc="一月",
            start_date=date(2026, 1, 2),
            end_date=date(2026, 1, 31),
            max_concurrent=10,
            min_concurrent=1,
            isrecord=True,
            disnumber="02112345678",
            caller="4001234567",
            call_policy=[
                NoCallPolicy.hours("早", time(0), time(9)),
                NoCallPolicy.weekdays("周末", [Weekday.SATURDAY, Weekday.SUNDAY]),
                NoCallPolicy.dates("春节", date(2026, 2, 16), date(2026, 2, 22)),
            ],
        ),
        answer='{"code":"000000","msg":"success","data":{"taskId":"1001"}}',
        reads={"task_id": "1001"},
        extra={"msg": "success"},
    ),
    Shape(
        name="a task with two policy objects",
        path=f"{TASKS}/save",
        body=(
            '{"bot_id":7,"task_name":"a","start_date":"2026-01-02","end_date":"2026-01-02","max_concurrent":1,'
            '"min_concurrent":1,"isrecord":0,"caller":"1","call_policy":['
            r'{"type":0,"policy":["{\"policy_type\":1,\"policy_name\":\"a\",\"policy_date\":\"周一\"}"]},'
            r'{"type":0,"policy":["{\"policy_type\":1,\"policy_name\":\"b\",\"policy_date\":\"周二\"}"]}]}'
        ),
        means=CreateCallTask(
            bot_id=7,
            task_name="a",
            start_date=date(2026, 1, 2),
            end_date=date(2026, 1, 2),
            max_concurrent=1,
            min_concurrent=1,
            caller="1",
            call_policy=[
                CallPolicy([NoCallPolicy.weekdays("a", [Weekday.MONDAY])]),
                CallPolicy([NoCallPolicy.weekdays("b", [Weekday.TUESDAY])]),
            ],
        ),
        answer='{"code":"000000","msg":"success","data":{"taskId":"1001"}}',
        reads={"task_id": "1001"},
        extra={"msg": "success"},
    ),
    Shape(
        name="a task with the required fields, at the path of the sample",
        path=TASKS,
        body=(
            '{"bot_id":7,"task_name":"a","start_date":"2026-01-02","end_date":"2026-01-02","max_concurrent":1,'
            '"min_concurrent":1,"isrecord":0,"caller":"1"}'
        ),
        means=CreateCallTask(
            bot_id=7,
            task_name="a",
            start_date=date(2026, 1, 2),
            end_date=date(2026, 1, 2),
            max_concurrent=1,
            min_concurrent=1,
            caller="1",
        ),
        answer='{"code":"000000","msg":"success","data":{"taskId":"1001"}}',
        reads={"task_id": "1001"},
        extra={"msg": "success"},
        choices={"bare_task_path": True},
    ),
]
READ_ONLY = [
    # name, shape by whose operation it is read, another answer that the description shows, what it says
    (
        "a search with its fields at the top level, as the table lists them",
        "SearchPublicGroups by both",
        f'{{"statusCode":"000000","groupId":"{GROUP}","name":"公告栏","type":"2","count":"3","permission":"1"}}',
        {"groups": [(GROUP, "公告栏", GroupType.PAID_500, 3, Permission.VERIFIED)]},
    ),
    (
        "details without the optional and the unlisted field",
        "QueryGroupDetail",
        (
            '{"statusCode":"000000","name":"a","owner":"1000","declared":"","count":"1",'
            '"dateCreated":"2014-10-1 10:5:3","permission":"1","target":"0"}'
        ),
        {
            "permission": Permission.VERIFIED,
            "target": Target.DISCUSSION,
            "type": None,
            "group_domain": None,
            "declared": "",
            "date_created": datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA),
        },
    ),
    ("details without texts, as the emulator writes them", "QueryGroupDetail", BARE, {"declared": "", "group_domain": None}),
    (
        "a failed invitation without its optional fields",
        "InviteJoinGroup without userName, as its sample",
        '{"statusCode":"000000","fails":[{"member":"1009"},{"reason":"x"}]}',
        {"fails": [("1009", ""), ("", "x")]},
    ),
]
BY_NAME = {shape.name: shape for shape in SHAPES}


def shown(answer, names):
    """Return these attributes of an answer; rows as tuples."""
    rows = {
        "groups": lambda each: (each.group_id, each.name, each.type, each.count, each.permission),
        "fails": lambda each: (each.member, each.reason),
    }
    return {name: [*map(rows[name], getattr(answer, name))] if name in rows else getattr(answer, name) for name in names}


def contents(body):
    """Return a body's keys and values, each as often as it stands there, in any order, with the body's length."""
    text = body if isinstance(body, str) else body.decode()
    return len(text), json.loads(text, object_pairs_hook=lambda pairs: sorted(pairs, key=repr))


def platform_with_a_group(**choices):
    emulator = box(**choosing(**choices))
    emulator.never_logged_in("1009")
    emulator.state.groups[GROUP] = Group(
        group_id=GROUP,
        name="公告栏",
        type=GroupType.PAID_500,
        permission=Permission.OPEN,
        target=Target.GROUP,
        declared="公告",
        group_domain="x=1",
        created=datetime(2014, 1, 2, 3, 4, 5, tzinfo=CHINA),
        members={"admin": Role.CREATOR, "1001": Role.ADMINISTRATOR, "1002": Role.MEMBER},
    )
    return emulator


def client(transport, dialect, **options):
    settings = {"base_url": "https://platform:8883", "credentials": CREDENTIALS, "clock": EmulatedClock()}
    return AsyncClient(transport=transport, dialect=dialect, **settings | options)


# ------------------------------------------------------------------------------------ the client


@each_row("shape", SHAPES)
async def test_the_client_sends_this_request_and_reads_this_answer(shape):
    stub = Stub(Response(200, {}, shape.answer.encode()))
    async with client(stub, shape.dialect) as caller:
        answer = await caller.send(shape.means)
    (request,) = stub.requests
    assert request.method == "POST"
    assert request.origin == "https://platform:8883"
    assert request.target == f"{shape.path}?sig={SIG}"
    assert contents(request.body) == contents(shape.body)
    assert repr(shown(answer, shape.reads)) == repr(shape.reads)  # a member of an enum is not its text
    assert answer.extra == shape.extra
    headers = dict(request.headers)
    assert headers.pop("Accept-Encoding") == "identity"  # rbim's own, like the next one
    assert headers.pop("User-Agent").startswith("rbim/")
    if shape.path.startswith(TASKS):
        rand = headers.pop("Rand")
        assert rand.isascii()
        assert rand.isdigit()
    assert headers == {
        "Accept": "application/json",
        "Content-Type": "application/json;charset=utf-8",
        "Authorization": AUTHORIZATION,
    }


@each_row("of, answer, reads", [case[1:] for case in READ_ONLY])
async def test_the_client_reads_the_other_answers_that_the_description_shows(of, answer, reads):
    shape = BY_NAME[of]
    async with client(Stub(Response(200, {}, answer.encode())), shape.dialect) as caller:
        assert repr(shown(await caller.send(shape.means), reads)) == repr(reads)


# ---------------------------------------------------------------------------------- the emulator


def posted(path, body):
    """Return a request that is signed by hand."""
    return Request(
        origin="https://platform:8883",
        path=path,
        query={"sig": SIG},
        headers={
            "Accept": "application/json",
            "Content-Type": "application/json;charset=utf-8",
            "Authorization": AUTHORIZATION,
            "Rand": "123456",
        },
        body=body.encode(),
    )


BODIES = [(shape, body) for shape in SHAPES for body in (shape.body, *shape.others)]


@each_row("shape, body", BODIES)
async def test_the_emulator_reads_this_request_and_sends_this_answer_to_the_byte(shape, body):
    emulator = platform_with_a_group(**shape.choices)
    response = await emulator.send(posted(shape.path, body), timeout=1)
    assert (response.status, response.body.decode()) == (200, shape.answer)
    assert response.headers["content-type"] == "application/json;charset=utf-8"
    assert [record.operation for record in emulator.requests] == [shape.means]


async def test_the_emulator_answers_a_group_without_texts_to_the_byte():
    emulator, shape = platform_with_a_group(), BY_NAME["QueryGroupDetail"]
    emulator.state.groups[GROUP] = Group(
        group_id=GROUP,
        name="a",
        type=GroupType.TEMPORARY,
        permission=Permission.VERIFIED,
        target=Target.DISCUSSION,
        declared="",
        group_domain=None,
        created=datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA),
        members={"1001": Role.MEMBER, "1000": Role.CREATOR},
    )
    response = await emulator.send(posted(shape.path, shape.body), timeout=1)
    assert response.body.decode() == BARE


@each_row("shape", [shape for shape in SHAPES if shape.path.startswith(GROUPS)])
async def test_a_group_operation_is_accepted_with_an_account_and_without_one(shape):
    emulator = platform_with_a_group(**{**shape.choices, "second_join_refused": False})
    document = json.loads(shape.body)
    if document.pop("userName", None) is None:
        document["userName"] = "admin"
    response = await emulator.send(posted(shape.path, json.dumps(document)), timeout=1)
    assert json.loads(response.body)["statusCode"] == "000000"
    assert [record.operation for record in emulator.requests] == [evolve(shape.means, user_name=document.get("userName"))]


@each_row("choices", [{}, {"singular_search": True, "bare_task_path": True}])
@each_row("path", [f"{GROUPS}SearchPublicGroups", f"{GROUPS}SearchPublicGroup", f"{TASKS}/save", TASKS])
async def test_the_emulator_knows_both_paths_that_the_description_shows(path, choices):
    shape = BY_NAME["SearchPublicGroups by both" if "Search" in path else "a task with every field"]
    response = await platform_with_a_group(**choices).send(posted(path, shape.body), timeout=1)
    assert response.body.decode() == shape.answer


@each_row("method", ["GET", "PUT", "DELETE", "PATCH", "post"])
async def test_the_emulator_takes_no_other_method(method):
    emulator, shape = platform_with_a_group(), BY_NAME["DeleteGroup"]
    response = await emulator.send(evolve(posted(shape.path, shape.body), method=method), timeout=1)
    assert json.loads(response.body)["statusCode"] != "000000"
    assert GROUP in emulator.state.groups


@each_row("missing", [{"query": {}}, {"query": {"sig": SIG[::-1]}}, {"headers": {}}])
@each_row("name", ["DeleteGroup", "a task with every field"])
async def test_the_emulator_refuses_a_request_without_its_signature(name, missing):
    emulator, shape = platform_with_a_group(), BY_NAME[name]
    response = await emulator.send(evolve(posted(shape.path, shape.body), **missing), timeout=1)
    assert "000000" not in response.body.decode()
    assert (list(emulator.state.groups), list(emulator.state.tasks)) == ([GROUP], [])


# -------------------------------------------------------------------------------- message copies

CUR_TIME = "1767323045000"  # milliseconds from 1970 to NOW
ONE, TWO, ADMIN = f"{APP_ID}#1001", f"{APP_ID}#1002", f"{APP_ID}#admin"
FIRST = "m80000070010001"
TO_PERSON = (
    f'{{"eventType":"1","convType":"PERSON","to":"1002","fromAccount":"{ONE}","fromClientType":"Android PAD",'
    f'"fromDeviceId":"d-1","fromNick":"小王","msgTimestamp":"{CUR_TIME}","msgType":"AT","body":"你好 🎉",'
    f'"attach":"https://files.example/1.jpg","msgId":"{FIRST}","atUser":["{TWO}"],"ext":"x","linkInfo":"l",'
    '"antispam":"true"}'
)
PUSHED = (
    f'{{"eventType":"1","convType":"CUSTOM_PERSON","to":"REST","fromAccount":"{ADMIN}","msgTimestamp":"{CUR_TIME}",'
    f'"msgType":"TEXT","body":"hi","msgId":"{FIRST}","customSaveFlag":"1","customApnsFlag":"0","customApnsText":"new",'
    f'"tMembers":["{ONE}","{TWO}"]}}'
)
MESSAGES = ["TEXT", "PICTURE", "AUDIO", "VIDEO", "LOCATION", "FILE", "FILE_COMPRESS", "LINK", "AT"]
NOTICES = [
    *("TEAM_APPLY", "TEAM_INVITE", "TEAM_JOIN", "TEAM_DISMISS", "TEAM_QUIT", "TEAM_KICK", "TEAM_APPLY_ACCEPT"),
    *("TEAM_INVITE_ACCEPT", "TEAM_APPLY_REJECT", "TEAM_INVITE_REJECT", "TEAM_UPDATE", "TEAM_MEMBER_UPDATE"),
    *("TEAM_ADD_ADMIN", "TEAM_ROLE_UPDATE"),
]


def plain(conv, to, sender, msg_type, members=""):
    """Return the body of a message with the required fields, and ``tMembers`` if it has any."""
    listed = f',"tMembers":[{members}]' if members else ""
    return (
        f'{{"eventType":"1","convType":"{conv}","to":"{to}","fromAccount":"{sender}","msgTimestamp":"{CUR_TIME}",'
        f'"msgType":"{msg_type}","body":"x","msgId":"{FIRST}"{listed}}}'
    )


def said_with_every_field(emulator):
    emulator.say(
        "1001",
        "1002",
        "你好 🎉",
        msg_type="AT",
        attach="https://files.example/1.jpg",
        at_user=["1002"],
        nick="小王",
        client_type="Android PAD",
        device_id="d-1",
        ext="x",
        link_info="l",
        antispam=True,
    )


COPIES = [
    ("every field of a message", TO_PERSON, said_with_every_field),
    ("every field of a push", PUSHED, lambda e: e.push(["1001", "1002"], "hi", save=True, apns=False, apns_text="new")),
]
for name in ("Android", "IOS", "IPAD", "Android PAD", "PC", "H5", "MAC", "REST"):
    COPIES += [
        (
            f"from {name}",
            plain("PERSON", "1002", ONE, "TEXT").replace(',"msgT', f',"fromClientType":"{name}","msgT', 1),
            lambda e, k=name: e.say("1001", "1002", "x", client_type=k),
        )
    ]
for kind in MESSAGES:
    COPIES += [
        (f"PERSON {kind}", plain("PERSON", "1002", ONE, kind), lambda e, k=kind: e.say("1001", "1002", "x", msg_type=k)),
        (
            f"TEAM {kind}",
            plain("TEAM", GROUP, ONE, kind, f'"{ADMIN}","{TWO}"'),
            lambda e, k=kind: e.say("1001", GROUP, "x", msg_type=k),
        ),
        (
            f"CUSTOM_PERSON {kind}",
            plain("CUSTOM_PERSON", "REST", ADMIN, kind, f'"{TWO}"'),
            lambda e, k=kind: e.push("1002", "x", msg_type=k),
        ),
        (
            f"CUSTOM_TEAM {kind}",
            plain("CUSTOM_TEAM", GROUP, ADMIN, kind, f'"{ADMIN}","{ONE}","{TWO}"'),
            lambda e, k=kind: e.push(GROUP, "x", msg_type=k),
        ),
    ]
COPIES += [
    (
        f"NOTIFY_TEAM {kind}",
        plain("NOTIFY_TEAM", GROUP, ADMIN, kind, f'"{ONE}"'),
        lambda e, k=kind: e.notify(GROUP, k, ["1001"], text="x"),
    )
    for kind in NOTICES
]


def headers_of(body):
    """Return the headers of the description for a body, made with the standard library."""
    digest = md5(body).hexdigest().upper()
    return {
        "Content-Type": "application/json",
        "CurTime": CUR_TIME,
        "MD5": digest,
        "CheckSum": md5(f"{APP_ID}{TOKEN}{digest}{CUR_TIME}".encode()).hexdigest().upper(),
    }


def test_the_sums_of_one_copy_written_down():
    """As ``md5sum`` makes them."""
    assert headers_of(b"{}") == {
        "Content-Type": "application/json",
        "CurTime": "1767323045000",
        "MD5": "99914B932BD37A50B983C5E7C90AE93B",
        "CheckSum": "8E2BAB9FA43D2638E5766404A69FD5CF",
    }


@each_row("body, happens", [case[1:] for case in COPIES])
async def test_the_emulator_copies_this_body_to_the_byte_with_these_headers(body, happens):
    emulator, got = platform_with_a_group(), []

    async def receive(headers, content):
        got.append((headers, content.decode()))
        return 200

    emulator.copy_to(receive)
    happens(emulator)
    await emulator.deliver()
    assert got == [(headers_of(body.encode()), body)]


REQUIRED = {"eventType", "convType", "to", "fromAccount", "msgTimestamp", "msgType", "msgId"}
NAMES = {  # the attribute of each field; accounts and flags are compared as texts
    "eventType": "event_type",
    "convType": "conv_type",
    "to": "to",
    "fromAccount": "from_account",
    "fromClientType": "from_client_type",
    "fromDeviceId": "from_device_id",
    "fromNick": "from_nick",
    "msgTimestamp": "msg_timestamp",
    "msgType": "msg_type",
    "body": "body",
    "attach": "attach",
    "msgId": "msg_id",
    "resendFlag": "resend_flag",
    "customSaveFlag": "custom_save_flag",
    "customApnsFlag": "custom_apns_flag",
    "customApnsText": "custom_apns_text",
    "tMembers": "t_members",
    "atUser": "at_user",
    "ext": "ext",
    "linkInfo": "link_info",
    "antispam": "antispam",
}
OPTIONAL = [name for name in NAMES if name not in REQUIRED]
FLAGS = {"resendFlag": "1", "customSaveFlag": "1", "customApnsFlag": "1", "antispam": "true"}


def written(name, value):
    """Return an event's value as its body has it."""
    if name in FLAGS:
        return FLAGS[name] if value else {"antispam": "false"}.get(name, "0")
    return [str(each) for each in value] if isinstance(value, tuple) else str(value)


async def received(content):
    """Return the event that a receiver reads from these bytes, posted with the headers of the description."""
    async with (
        Receiver(credentials=CREDENTIALS, sink=(sink := MemorySink()), clock=EmulatedClock()) as receiver,
        httpx.AsyncClient(transport=httpx.ASGITransport(receiver.asgi)) as platform,
    ):
        answer = await platform.post("http://receiver/", content=content, headers=headers_of(content))
    assert (answer.status_code, await sink.quarantined()) == (200, [])
    (event,) = sink.events
    return event


RECEIVED = [body for _, body, _ in COPIES] + [f'{body[:-1]},"resendFlag":"1"}}' for _, body, _ in COPIES[:2]]


@each_row("body", RECEIVED)
async def test_a_receiver_takes_these_bytes_and_reads_each_field(body):
    event, document = await received(body.encode()), json.loads(body)
    assert type(event).__name__ == "".join(word.capitalize() for word in document["msgType"].split("_"))
    assert {name: written(name, getattr(event, NAMES[name])) for name in document} == document
    assert event.sent_at == NOW
    assert event.resend_flag is ("resendFlag" in document)


@each_row("flag", ["", "0"])
async def test_a_flag_of_zero_or_without_text_is_no_resend(flag):
    event = await received(f'{TO_PERSON[:-1]},"resendFlag":"{flag}"}}'.encode())
    assert event.resend_flag is False
    assert event.document["resendFlag"] == flag


@each_row("nothing", ['""', "null", None])
@each_row("name", OPTIONAL)
async def test_a_receiver_takes_an_optional_field_that_is_empty_or_absent(name, nothing):
    document = json.loads(TO_PERSON) | json.loads(PUSHED) | {"resendFlag": "1"}
    del document[name]
    content = json.dumps(document)[:-1] + ("}" if nothing is None else f',"{name}":{nothing}}}')
    event = await received(content.encode())
    assert not getattr(event, NAMES[name])
    assert (name in event.document) is (nothing is not None)


async def test_a_resend_is_the_same_body_with_its_flag():
    emulator, got = platform_with_a_group(resend_after=(5.0,)), []

    async def receive(headers, content):
        got.append((headers, content.decode()))
        return 503

    emulator.copy_to(receive, "high-guarantee")
    said_with_every_field(emulator)
    await emulator.advance(5)
    again = TO_PERSON[:-1] + ',"resendFlag":"1"}'
    assert [body for _, body in got] == [TO_PERSON, again]
    assert got[0][0] == headers_of(TO_PERSON.encode())


@each_row("change", [str.upper, str.lower])
async def test_a_receiver_ignores_the_case_of_the_checksum(change):
    headers = headers_of(PUSHED.encode())
    async with Receiver(credentials=CREDENTIALS, sink=MemorySink(), clock=EmulatedClock()) as receiver:
        reply = await receiver.receive({**headers, "CheckSum": change(headers["CheckSum"])}, PUSHED.encode())
    assert reply.status == 200
