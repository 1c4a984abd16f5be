"""The emulator's journal of requests, where it is kept short."""

from rbim import QueryGroupDetail
from rbim.emulator.logs import RequestLog


def test_a_journal_with_a_limit_keeps_the_latest_requests_and_goes_on_counting():
    journal = RequestLog(limit=10)
    for number in range(25):
        op = QueryGroupDetail(group_id=f"g{number % 3}")
        journal.note(op, at=0.0, path="/", code="000000", effect=True)
        assert len(journal) <= 10
    assert [record.number for record in journal] == list(range(26 - len(journal), 26))
    kept = [record.operation for record in journal]
    assert journal.of(QueryGroupDetail) == kept
    assert [record.attempt for record in journal][-1] >= 3
    journal.clear()
    journal.note(None, at=0.0, path="/", code="900400", effect=False)
    assert [(record.number, record.attempt) for record in journal] == [(1, 1)]
