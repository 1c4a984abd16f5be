"""A journal keeps the dialect of its job, and the job continues in no other."""

import json
import sqlite3
from contextlib import closing
from datetime import timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from helpers.jobs import Sending, read, rows_of
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


async def test_a_journal_of_the_default_dialect_says_so(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 3))
    assert settings_of(journal)["dialect"] == {}


async def test_the_digest_of_the_input_is_the_same_in_every_dialect(tmp_path):
    digests = set()
    for number, dialect in enumerate([Dialect(), OTHER]):
        journal = tmp_path / str(number)
        await Sending().job(journal, dialect=dialect).run(rows_of(2, 3))
        digests |= set(read(journal, "SELECT digest FROM job"))
    assert len(digests) == 1


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
        "codes is default in the journal and 112399=Throttled here",
    ),
]


@pytest.mark.parametrize(("dialect", "says"), DIFFERENT)
async def test_another_dialect_is_refused_with_the_fields_that_differ(journal, dialect, says):
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


async def test_a_zone_of_another_name_and_the_same_offset_is_another(journal):
    sending = Sending()
    await sending.job(journal, dialect=Dialect(zone=ZoneInfo("Asia/Tokyo"))).run(rows_of(1, 1))
    with pytest.raises(InvalidRequest, match=r"zone is Asia/Tokyo in the journal and UTC\+09:00 here"):
        open_job(sending, journal, dialect=Dialect(zone=OTHER.zone))


async def test_a_choice_of_emulator_and_receiver_is_none_of_the_job(journal):
    sending = Sending()
    await sending.job(journal, dialect=Dialect(overflow_fails=False)).run(rows_of(1, 1))
    assert settings_of(journal)["dialect"] == {}
    open_job(sending, journal, dialect=Dialect(resend_after=(1.0,), delivery_max_age=None, message_time_unit="seconds"))


async def test_a_field_of_a_newer_version_is_named(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 1))
    settings = settings_of(journal) | {"dialect": {"colour": "red"}}
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE job SET settings = ?", (json.dumps(settings),))
    with pytest.raises(InvalidRequest, match='colour is "red" in the journal and unknown here'):
        open_job(sending, journal, dialect=Dialect())
    with pytest.raises(InvalidRequest, match="colour: this version of rbim has no such field of the dialect"):
        open_job(sending, journal)
    assert 'dialect: colour "red"' in report_text(read_report(journal))


async def test_a_report_says_the_dialect_if_it_is_not_the_default(tmp_path):
    sending = Sending()
    for name, dialect in (("a", Dialect()), ("b", OTHER)):
        await sending.job(tmp_path / name, dialect=dialect).run(rows_of(1, 1))
    plain, other = read_report(tmp_path / "a"), read_report(tmp_path / "b")
    assert "dialect" not in report_text(plain)
    assert "  dialect: api_version 2016-08-15, members_shape nested, zone UTC+09:00\n" in report_text(other)
    assert (plain.as_json()["job"]["dialect"], other.as_json()["job"]["dialect"]) == ({}, KEPT)
