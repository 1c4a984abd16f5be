"""Hypothesis strategies of operations, built from their attrs fields: what the interface's limits allow, up to the limit."""

from datetime import date, time, timedelta

from hypothesis import strategies as st

from rbim import CallPolicy, CreateCallTask, NoCallPolicy, Weekday
from rbim.operations.base import fields_of
from rbim.operations.groups import GroupType, Permission, Role, Target

TODAY = date(2026, 1, 2)  # an EmulatedClock's first day, in UTC+8
LIMITS = {
    ("CreateGroup", "name"): 50,
    ("CreateGroup", "declared"): 200,
    ("ModifyGroup", "name"): 50,
    ("ModifyGroup", "declared"): 200,
    ("JoinGroup", "declared"): 50,
    ("InviteJoinGroup", "declared"): 50,
    ("CreateCallTask", "task_name"): 32,
    ("CreateCallTask", "task_desc"): 64,
}
CHARACTERS = st.characters(exclude_categories=["Cs"])


def texts(limit=50):
    """Texts of any characters that UTF-8 has, Chinese names, and such as are exactly as long as they may be."""
    return (
        st.text(CHARACTERS, min_size=1, max_size=limit)
        | st.text("研发部产品公告群abc123 🎉👩‍💻", min_size=1, max_size=min(limit, 8))
        | st.sampled_from("a群🎉").map(lambda character: character * limit)
    )


TIMES = st.builds(time, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
DAYS = st.dates(min_value=date(1000, 1, 1))


def _periods(make, points):
    return st.builds(lambda name, two: make(name, *sorted(two)), texts(25), st.tuples(points, points))


POLICIES = st.one_of(
    _periods(NoCallPolicy.hours, TIMES),
    _periods(NoCallPolicy.dates, DAYS),
    st.builds(NoCallPolicy.weekdays, texts(25), st.sets(st.sampled_from(Weekday), min_size=1)),
)
_SEVERAL = st.lists(POLICIES, max_size=3, unique_by=lambda policy: policy.name)


def _objects(policies):
    """Return one object of no policy, and one of each: more than one object, as soon as there is a policy."""
    return [CallPolicy(()), *(CallPolicy([policy]) for policy in policies)]


BY_TYPE = {
    bool: st.booleans(),
    date: DAYS,
    int: st.integers(-(2**31), 2**31),
    tuple[str, ...]: st.lists(texts(), min_size=1, max_size=50),
    tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...] | None: st.none() | _SEVERAL | _SEVERAL.map(_objects),
    Permission | None: st.none() | st.sampled_from(Permission),
} | {choices: st.sampled_from(choices) for choices in (GroupType, Permission, Target, Role)}


def _values(kind, attribute):
    if attribute.type in BY_TYPE:
        return BY_TYPE[attribute.type]
    text = texts(LIMITS.get((kind.__name__, attribute.name), 60))
    return text if attribute.type is str else st.none() | text


def operations(kind, **told):
    """Return a strategy of one class's operations; ``told`` gives those of some fields, where the class has them."""
    fields = {a.name: told[a.name] if a.name in told else _values(kind, a) for a in fields_of(kind)}
    if kind is not CreateCallTask:
        return st.builds(kind, **fields)
    for name in ("start_date", "end_date", "min_concurrent", "max_concurrent"):  # these depend on each other
        del fields[name]
    return st.builds(
        lambda start, days, least, more, **rest: kind(
            start_date=start, end_date=start + days, min_concurrent=least, max_concurrent=least + more, **rest
        ),
        start=st.dates(TODAY, date(2099, 1, 1)),
        days=st.timedeltas(timedelta(0), timedelta(days=400)),
        least=st.integers(1, 99),
        more=st.integers(0, 99),
        **fields | {"rand": st.none() | st.integers(0, 10**9).map(str)},
    )


LEAST = {
    "bot_id": 7,
    "task_name": "回访",
    "start_date": date(2026, 1, 2),
    "end_date": date(2026, 1, 31),
    "max_concurrent": 10,
    "min_concurrent": 1,
    "caller": "4001234567",
}
