"""A table of cases as one test."""

import inspect
from contextlib import ExitStack, contextmanager

import pytest


def each_row(names, rows):
    """Run a test for every row of a table, as one test that tells all the rows that fail.

    ``names`` are those of the arguments, separated by commas; with a single one, rows are values. All rows have the same
    fixtures, but what one has patched is undone before the next.
    """
    arguments = [name.strip() for name in names.split(",")]
    table = [dict(zip(arguments, row if len(arguments) > 1 else (row,), strict=True)) for row in rows]
    assert table, "a table without rows shows nothing"

    def decorate(test):
        if inspect.iscoroutinefunction(test):

            async def whole(**fixtures):
                with _all_told(len(table)) as failing:
                    for row in table:
                        with failing(row), _patches(fixtures) as own:
                            await test(**own, **row)
        else:

            def whole(**fixtures):
                with _all_told(len(table)) as failing:
                    for row in table:
                        with failing(row), _patches(fixtures) as own:
                            test(**own, **row)

        taken = inspect.signature(test).parameters
        left = [parameter for name, parameter in taken.items() if name not in arguments]
        whole.__signature__ = inspect.Signature(left)
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(whole, name, getattr(test, name))
        whole.pytestmark = list(getattr(test, "pytestmark", []))
        return whole

    return decorate


@contextmanager
def _patches(fixtures):
    """Give the fixtures, with another MonkeyPatch in place of each."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(pytest.MonkeyPatch.context()) if isinstance(value, pytest.MonkeyPatch) else value
            for name, value in fixtures.items()
        }


@contextmanager
def _all_told(rows):
    """Raise what the rows raised, when all have been tried, each with its row."""
    failed = []

    @contextmanager
    def failing(row):
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"row: {', '.join(f'{name}={value!r:.200}' for name, value in row.items())}")
            failed.append(error)

    yield failing
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {rows} rows", failed)
