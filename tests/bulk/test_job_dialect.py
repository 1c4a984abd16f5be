"""A journal keeps the dialect of its job, and the job continues in no other."""

import json
import sqlite3
from contextlib import closing
from datetime import timedelta, timezone

import pytest

from helpers.jobs import Sending, read, rows_of
from helpers.tables import each_row
from rbim import CODES, AsyncClient, Code, Credentials, Dialect, InvalidRequest, Rate, Throttled
from rbim.bulk import open_job, read_report
from rbim.bulk.report.text import report_text
from rbim.emulator import Emulator

OTHER = Dialect(api_version="2016-08-15", members_shape="nested", zone=timezone(timedelta(hours=9)))
KEPT = {"api_version": "2016-08-15", "members_shape": "nested", "zone": "UTC+09:00"}


def refusal(journal, says):
    return (
        f"{journal}: the job was begun with another dialect: {says}. Use the dialect of the journal, or begin another job"
        " with another journal"
    )


def settings_of(journal):
    ((text,),) = read(journal, "SELECT settings FROM job")
    return json.loads(text)


def client_of(sending, dialect):
    return AsyncClient(
        base_url="http://a",
        credentials=Credentials(app_id="a", app_token="b"),
        transport=Emulator(),
        dialect=dialect,
        clock=sending.clock,
    )


async def test_a_journal_keeps_what_differs_from_the_defaults(journal):
    sending = Sending()
    await sending.job(journal, dialect=OTHER).run(rows_of(1, 3))
    assert settings_of(journal)["dialect"] == KEPT
    assert [json.loads(text)["dialect"] for (text,) in read(journal, "SELECT settings FROM run")] == [KEPT]


DIFFERENT = [
    (Dialect(api_version="2016-08-15", members_shape="nested"), "zone is UTC+09:00 in the journal and UTC+08:00 here"),
    (
        Dialect(zone=OTHER.zone, api_version="x"),
        "api_version is 2016-08-15 in the journal and x here; members_shape is nested in the journal and plain here",
    ),
    (
        Dialect(
            api_version="2016-08-15",
            members_shape="nested",
            zone=OTHER.zone,
            codes={**CODES, "112399": Code(error=Throttled)},
        ),
        'codes is {} in the journal and {"112399":"Throttled"} here',
    ),
]


@each_row("dialect, says", DIFFERENT)
async def test_another_dialect_is_refused_with_the_fields_that_differ(tmp_path, dialect, says):
    journal = tmp_path / dialect.api_version / "journal"
    journal.parent.mkdir(exist_ok=True)
    sending = Sending()
    await sending.job(journal, dialect=OTHER).run(rows_of(1, 3))
    sent = len(sending.operations)
    job = sending.job(journal, dialect=dialect)

    for run in (job.resume, job.retry, lambda: job.run(rows_of(1, 3))):
        with pytest.raises(InvalidRequest) as caught:
            await run()
        assert (caught.value.message, caught.value.field) == (refusal(journal, says), "dialect")
    for sender, options in ((sending, {"dialect": dialect}), (client_of(sending, dialect), {})):
        with pytest.raises(InvalidRequest) as caught:
            open_job(sender, journal, **options)
        assert caught.value.message == refusal(journal, says)
    assert len(sending.operations) == sent
    assert settings_of(journal)["dialect"] == KEPT


async def test_the_same_dialect_continues(journal):
    sending = Sending()
    await sending.job(journal, dialect=OTHER, rates=[Rate(5)]).run(rows_of(1, 3))

    assert open_job(client_of(sending, OTHER), journal).work.dialect == OTHER
    assert open_job(sending, journal, dialect=OTHER).work.dialect == OTHER
    again = open_job(sending, journal, clock=sending.clock)  # a sender that is no client has no dialect of its own
    assert again.work.dialect == OTHER
    assert again.settings.rates == (Rate(5),)
    report = await again.resume()
    assert (report.complete, report.dialect) == (True, KEPT)


async def test_a_choice_of_the_receiver_is_none_of_the_job(journal):
    sending = Sending()
    await sending.job(journal, dialect=Dialect(delivery_max_ahead=None)).run(rows_of(1, 1))
    assert settings_of(journal)["dialect"] == {}
    open_job(sending, journal, dialect=Dialect(delivery_max_age=None, message_time_unit="seconds"))


async def test_a_field_of_a_newer_version_is_named(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 1))
    settings = settings_of(journal) | {"dialect": {"colour": "red"}}
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE job SET settings = ?", (json.dumps(settings),))
    with pytest.raises(InvalidRequest, match="colour is red in the journal and unknown here"):
        open_job(sending, journal, dialect=Dialect())
    with pytest.raises(InvalidRequest, match="colour: there is no such field of Dialect"):
        open_job(sending, journal)
    assert "dialect: colour red" in report_text(read_report(journal))
