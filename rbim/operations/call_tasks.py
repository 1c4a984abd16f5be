"""Automated outbound calls: task creation, no-call policies, and the namespace ``client.calls``.

Field names are those of the wire ("Outbound-call task" of the interface description).
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, cast

from attrs import Attribute, field, frozen

from rbim._support import json
from rbim._support.text import empty
from rbim.errors import InvalidRequest
from rbim.operations.base import Answer, Endpoint, Operation, check_length, described, on_command_line, operation, wire
from rbim.operations.namespace import Method, Namespace
from rbim.validators import at_least_one, one_of, text

if TYPE_CHECKING:
    from rbim.clock import Clock
    from rbim.dialect import Dialect

__all__ = [
    "CallPolicy",
    "CallTaskCreated",
    "Calls",
    "CreateCallTask",
    "Dates",
    "Hours",
    "NoCallPolicy",
    "PolicyType",
    "Weekday",
    "Weekdays",
    "default_no_call_policies",
]

TASK_NAME = 32
TASK_DESCRIPTION = 64
ENTRY = 255


class PolicyType(IntEnum):
    """The type of a no-call policy's period."""

    DAY = 0
    WEEK = 1
    DATES = 2


class Weekday(IntEnum):
    """Days of the week, numbered as ``date.weekday()`` does."""

    MONDAY = 0
    TUESDAY = 1
    WEDNESDAY = 2
    THURSDAY = 3
    FRIDAY = 4
    SATURDAY = 5
    SUNDAY = 6

    @property
    def wire(self) -> str:
        """The Chinese name that the platform reads."""
        return "周" + "一二三四五六日"[self]


def _whole(_: object, attribute: "Attribute[Any]", value: object) -> None:
    kind = time if attribute.type is time else date
    fits = isinstance(value, kind) and not isinstance(value, datetime)
    if not fits or (isinstance(value, time) and (value.tzinfo is not None or value.microsecond)):
        raise InvalidRequest(
            f"{attribute.name}: a {kind.__name__} is needed (whole seconds, no zone), not {value!r}", field=attribute.name
        )


@frozen
class Hours:
    """A part of every day, from ``start`` to ``end``, in whole seconds of the platform's time.

    By default a task refuses hours whose end is before their start (``reversed_periods_refused`` of the dialect); otherwise
    they run past midnight.
    """

    type: ClassVar[PolicyType] = PolicyType.DAY
    start: time = field(validator=_whole)
    end: time = field(validator=_whole)

    @property
    def wire(self) -> str:
        """``HH:MM:SS,HH:MM:SS``."""
        return f"{self.start.isoformat('seconds')},{self.end.isoformat('seconds')}"

    def covers(self, moment: datetime) -> bool:
        """Tell whether the moment (in the platform's time) is inside; the last second is."""
        now = moment.time().replace(microsecond=0)
        if self.end < self.start:
            return now >= self.start or now <= self.end
        return self.start <= now <= self.end


def _days(value: Iterable[Weekday]) -> frozenset[Weekday]:
    days = tuple(value) if isinstance(cast("object", value), Iterable) else ()
    if not days or not all(isinstance(cast("object", day), Weekday) for day in days):
        raise InvalidRequest("days: a list of at least one Weekday is needed", field="days")
    return frozenset(days)


@frozen
class Weekdays:
    """Whole days of every week."""

    type: ClassVar[PolicyType] = PolicyType.WEEK
    days: frozenset[Weekday] = field(converter=_days)

    @property
    def wire(self) -> str:
        """The Chinese names of the days from Monday on, separated by commas."""
        return ",".join(day.wire for day in sorted(self.days))

    def covers(self, moment: datetime) -> bool:
        """Tell whether the moment (in the platform's time) is inside."""
        return moment.weekday() in self.days


@frozen
class Dates:
    """Whole days from ``start`` to ``end``, both included.

    By default a task refuses dates whose end is before their start (``reversed_periods_refused`` of the dialect); otherwise
    they contain no day.
    """

    type: ClassVar[PolicyType] = PolicyType.DATES
    start: date = field(validator=_whole)
    end: date = field(validator=_whole)

    @property
    def wire(self) -> str:
        """``YYYY-MM-DD,YYYY-MM-DD``."""
        return f"{self.start.isoformat()},{self.end.isoformat()}"

    def covers(self, moment: datetime) -> bool:
        """Tell whether the moment (in the platform's time) is inside."""
        return self.start <= moment.date() <= self.end


def _is_period(_: object, attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, (Hours, Weekdays, Dates)):
        raise InvalidRequest(f"{attribute.name}: Hours, Weekdays or Dates are needed, not {value!r}", field=attribute.name)


@frozen
class NoCallPolicy:
    """A period in which a task must not call, with a name that is unique within the task.

    Create it with :meth:`hours`, :meth:`weekdays` or :meth:`dates`. On the wire it is a *text* that contains a JSON object,
    at most 255 characters long.
    """

    name: str = field(validator=text())
    period: Hours | Weekdays | Dates = field(validator=_is_period)

    def __attrs_post_init__(self) -> None:
        length = len(self.entry.decode())
        if length > ENTRY:
            raise InvalidRequest(
                f"name: a policy's entry has at most {ENTRY} characters, not {length}; use a shorter name",
                field="name",
                limit=ENTRY,
                length=length,
            )

    @classmethod
    def hours(cls, name: str, start: time, end: time) -> "NoCallPolicy":
        """Return a policy that forbids a part of every day; by default a night needs two policies."""
        return cls(name, Hours(start, end))

    @classmethod
    def weekdays(cls, name: str, days: Iterable[Weekday]) -> "NoCallPolicy":
        """Return a policy that forbids whole days of every week."""
        return cls(name, Weekdays(days))

    @classmethod
    def dates(cls, name: str, start: date, end: date) -> "NoCallPolicy":
        """Return a policy that forbids whole days, from the first to the last."""
        return cls(name, Dates(start, end))

    @property
    def entry(self) -> bytes:
        """The JSON object in the entry's text, in UTF-8."""
        try:
            return json.dumps(
                {"policy_type": int(self.period.type), "policy_name": self.name, "policy_date": self.period.wire}
            )
        except ValueError:
            raise InvalidRequest("name: it has a character that UTF-8 cannot encode", field="name") from None

    @classmethod
    def from_entry(cls, entry: str) -> "NoCallPolicy":
        """Return the policy from an entry's text. Raises InvalidRequest."""
        if isinstance(cast("object", entry), str) and len(entry) > ENTRY:
            raise InvalidRequest(
                f"policy: an entry has at most {ENTRY} characters, not {len(entry)}",
                field="call_policy",
                limit=ENTRY,
                length=len(entry),
            )
        try:
            document = json.loads(entry.encode())
            return cls(document["policy_name"], _period(int(document["policy_type"]), document["policy_date"]))
        except InvalidRequest:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise InvalidRequest(
                f"policy: an entry must be a text with policy_type, policy_name and policy_date, not {entry!r}",
                field="call_policy",
            ) from None


def _period(kind: int, wire_date: str) -> Hours | Weekdays | Dates:
    parts = wire_date.split(",")
    if kind == PolicyType.WEEK:
        names = {day.wire: day for day in Weekday}
        return Weekdays(names[part] for part in parts)
    start, end = parts
    period: Hours | Dates
    if PolicyType(kind) is PolicyType.DAY:
        period = Hours(time.fromisoformat(start), time.fromisoformat(end))
    else:
        period = Dates(date.fromisoformat(start), date.fromisoformat(end))
    if period.wire != wire_date:  # fromisoformat accepts more forms than the platform
        raise ValueError(wire_date)
    return period


def _several(value: Iterable[NoCallPolicy]) -> tuple[NoCallPolicy, ...]:
    # the validator rejects a value that is not iterable
    return tuple(value) if isinstance(cast("object", value), Iterable) else cast("tuple[NoCallPolicy, ...]", value)


def _no_call_policies(_: object, attribute: "Attribute[Any]", value: object) -> None:
    for policy in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
        if not isinstance(policy, NoCallPolicy) or not isinstance(value, tuple):
            raise InvalidRequest(
                f"{attribute.name}: a list of NoCallPolicy values is needed, not {policy!r}", field=attribute.name
            )


@frozen
class CallPolicy:
    """One call policy object of the wire, with its no-call policies.

    Use it to send several objects, or one without policies. A task whose ``call_policy`` lists :class:`NoCallPolicy` values
    sends them in one object.
    """

    type: ClassVar[int] = 0
    """The only documented type: no-call (forbidden calling)."""

    policies: tuple[NoCallPolicy, ...] = field(converter=_several, validator=_no_call_policies)

    @property
    def wire(self) -> dict[str, Any]:
        """The JSON object; each policy in it is a text that contains a JSON object."""
        return {"type": self.type, "policy": [policy.entry.decode() for policy in self.policies]}

    @classmethod
    def from_wire(cls, document: Mapping[str, Any]) -> "CallPolicy":
        """Return the policy from a JSON object. Raises InvalidRequest for a type other than 0 and for invalid policies."""
        fields: Mapping[str, Any] = document if isinstance(cast("object", document), Mapping) else {}
        kind, entries = fields.get("type"), fields.get("policy")
        if isinstance(kind, bool) or not isinstance(kind, (int, str)) or not isinstance(entries, list):
            raise InvalidRequest(
                f"call_policy: an object with type and policy, a list, is needed, not {document!r}", field="call_policy"
            )
        if str(kind) != str(cls.type):  # a number may be written as text
            raise InvalidRequest(
                f"call_policy: type 0, no-call, is the only documented type, not {kind}", field="call_policy"
            )
        return cls(NoCallPolicy.from_entry(entry) for entry in cast("list[str]", entries))


def default_no_call_policies() -> tuple[NoCallPolicy, NoCallPolicy]:
    """Return the platform's default no-call policies: 00:00:00 to 09:00:00 and 21:00:00 to 23:59:59."""
    return (
        NoCallPolicy.hours("morning", time(0, 0, 0), time(9, 0, 0)),
        NoCallPolicy.hours("night", time(21, 0, 0), time(23, 59, 59)),
    )


@frozen(kw_only=True)
class CallTaskCreated(Answer):
    """The new task's ``task_id``."""

    task_id: str
    extra: Mapping[str, Any] = field(factory=empty, hash=False)


CALL = Endpoint(
    path="/api/application/{app_id}/aicall/task/save",
    origin="call_base_url",
    code="code",
    message="msg",
    payload="data",
    camel=False,
)
"""The task operations' endpoint: no version segment, ``code`` and ``msg`` instead of ``statusCode``, answer in ``data``."""


def _digits(_: object, attribute: "Attribute[Any]", value: str | None) -> None:
    if value is not None and not (value.isascii() and value.isdigit()):
        raise InvalidRequest(f"{attribute.name}: ASCII digits only, not {value!r}", field=attribute.name)


def _policies(
    value: Iterable[NoCallPolicy] | Iterable[CallPolicy] | None,
) -> tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...] | None:
    # the validator rejects a value that is not iterable
    return cast("tuple[NoCallPolicy, ...]", tuple(value) if isinstance(value, Iterable) else value)


def _one_kind(_: object, attribute: "Attribute[Any]", value: object) -> None:
    """Accept None, several NoCallPolicy values or several CallPolicy values, with unique names."""
    if value is None:
        return
    entries = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    kinds = {type(each) for each in entries}
    if not isinstance(value, tuple) or not kinds <= {NoCallPolicy, CallPolicy}:
        wrong = next((each for each in entries if not isinstance(each, (NoCallPolicy, CallPolicy))), entries[0])
        raise InvalidRequest(
            f"{attribute.name}: a list of NoCallPolicy values is needed, not {wrong!r}", field=attribute.name
        )
    if len(kinds) > 1:
        raise InvalidRequest(
            f"{attribute.name}: use either NoCallPolicy or CallPolicy values, not both", field=attribute.name
        )
    names = [policy.name for policy in _flat(cast("tuple[NoCallPolicy, ...]", entries))]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(
            f"{attribute.name}: policy names must be unique within a task, but {twice!r} appears twice", field=attribute.name
        )


def _flat(value: tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...]) -> tuple[NoCallPolicy, ...]:
    return tuple(policy for each in value for policy in (each.policies if isinstance(each, CallPolicy) else (each,)))


# Each entry of "policy" is a text that contains a JSON object:
# `"call_policy": [{"type": 0, "policy": ["{\"policy_type\": 0, ...}"]}]`, `"call_policy": []`
def _write_policies(value: tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...]) -> list[dict[str, Any]]:
    alone = tuple(each for each in value if isinstance(each, NoCallPolicy))
    objects = (CallPolicy(alone),) if alone else cast("tuple[CallPolicy, ...]", value)
    return [each.wire for each in objects]


def _read_policies(value: Any) -> tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...]:
    if not isinstance(cast("object", value), list):
        raise InvalidRequest(f"call_policy: a list of objects is needed, not {value!r}", field="call_policy")
    objects = tuple(CallPolicy.from_wire(each) for each in value)
    return objects[0].policies if len(objects) == 1 and objects[0].policies else objects


def _read_policy(text: str) -> NoCallPolicy | CallPolicy:
    """Return a policy from its entry, or a call policy object, which holds such entries."""
    try:
        document = json.loads(text.encode())
    except ValueError:
        document = None
    if isinstance(document, dict) and "policy" in document:
        return CallPolicy.from_wire(cast("dict[str, Any]", document))
    return NoCallPolicy.from_entry(text)


@operation("CreateCallTask", paths=(CALL.path, CALL.path.removesuffix("/save")))
@frozen(kw_only=True)
class CreateCallTask(Operation[CallTaskCreated]):
    """Create an automated outbound-call task bound to a robot.

    Never repeated automatically: a second task makes the same calls again. ``task_name`` has at most 32 characters,
    ``task_desc`` 64. ``start_date`` is today (in the dialect's zone) or later, ``end_date`` is ``start_date`` or later.
    ``min_concurrent`` is at least 1; ``max_concurrent`` is at most the application's concurrency, if the dialect gives it,
    and by default at least ``min_concurrent`` (``max_below_min_refused`` of the dialect). ``disnumber`` is the number
    shown, ``caller`` the calling number. ``call_policy`` lists the periods in which the task must not call (see
    :func:`default_no_call_policies`), as :class:`NoCallPolicy` values, or as :class:`CallPolicy` objects. An empty list
    says that there are none; None leaves the field out, and the platform's default policies apply. ``rand`` is the ``Rand``
    header, whose purpose is not documented: ASCII digits, by default new random ones.
    """

    endpoint: ClassVar[Endpoint] = CALL
    bot_id: int = field(validator=one_of(int), metadata=described("The identifier of the robot."))
    task_name: str = field(validator=text(at_most=TASK_NAME), metadata=described("The name of the task."))
    task_desc: str | None = field(
        default=None,
        validator=text(at_most=TASK_DESCRIPTION, optional=True),
        metadata=described("A description of the task."),
    )
    start_date: date = field(validator=_whole, metadata=described("The first day of the task: today or later."))
    end_date: date = field(validator=_whole, metadata=described("The last day of the task."))
    max_concurrent: int = field(validator=one_of(int), metadata=described("The maximum number of calls at the same time."))
    min_concurrent: int = field(
        validator=at_least_one, metadata=described("The minimum number of calls at the same time, at least 1.")
    )
    isrecord: bool = field(
        default=False, validator=one_of(bool), metadata=wire(values={True: 1, False: 0}) | described("Record the calls.")
    )
    disnumber: str | None = field(
        default=None, validator=text(optional=True), metadata=described("The number that is shown to the called person.")
    )
    caller: str = field(validator=text(), metadata=described("The number that calls."))
    call_policy: tuple[NoCallPolicy, ...] | tuple[CallPolicy, ...] | None = field(
        default=None,
        converter=_policies,
        validator=_one_kind,
        metadata=wire(write=_write_policies, read=_read_policies)
        | described("The periods in which the task must not call.")
        | on_command_line(_read_policy, {"default": default_no_call_policies, "none": tuple[NoCallPolicy]}),
    )
    rand: str | None = field(
        default=None,
        validator=[text(optional=True), _digits],
        metadata=wire(header="Rand") | described("The Rand header: ASCII digits (default: new random ones)."),
    )

    @property
    def no_call_policies(self) -> tuple[NoCallPolicy, ...]:
        """The no-call policies of all objects in ``call_policy``; empty if it is None."""
        return _flat(self.call_policy or ())

    @classmethod
    def path(cls, dialect: "Dialect") -> str:
        """Return the path with ``/save``, or the path of the request sample, without it."""
        return cls.spec.paths[dialect.bare_task_path]

    def check(self, dialect: "Dialect", clock: "Clock", /) -> None:
        """Raise InvalidRequest for past or reversed dates, and for bounds against each other or the application's limit."""
        today = clock.now().astimezone(dialect.zone).date()
        most = dialect.application_concurrency
        if self.start_date < today:
            _refuse("start_date", f"{self.start_date} is before today, {today}")
        if self.end_date < self.start_date:
            _refuse("end_date", f"{self.end_date} is before start_date, {self.start_date}")
        if self.max_concurrent < self.min_concurrent and dialect.max_below_min_refused:
            _refuse("max_concurrent", f"{self.max_concurrent} is below min_concurrent, {self.min_concurrent}")
        if most is not None and self.max_concurrent > most:
            _refuse("max_concurrent", f"{self.max_concurrent} is above the application's concurrency, {most}", most)
        for policy in self.no_call_policies:
            check_length("call_policy", policy.entry.decode(), ENTRY, dialect)
            period = policy.period
            if isinstance(period, (Hours, Dates)) and _is_reversed(period) and dialect.reversed_periods_refused:
                night = "; for a night use two policies, to 23:59:59 and from 00:00:00" if isinstance(period, Hours) else ""
                _refuse(
                    "call_policy", f"the end of {policy.name!r}, {period.end}, is before its start, {period.start}{night}"
                )

    def headers(self, digits: Callable[[], str], /) -> Mapping[str, str]:
        """Return the ``Rand`` header."""
        return {"Rand": self.rand or digits()}


def _is_reversed(period: Hours | Dates) -> bool:
    return bool(cast("Any", period.end) < period.start)


def _refuse(name: str, reason: str, limit: int | None = None) -> None:
    message = f"{name}: {reason}"
    raise InvalidRequest(message, field=name, limit=limit)


class Calls(Namespace):
    """The operations on outbound-call tasks as methods."""

    create_task = Method(CreateCallTask)
