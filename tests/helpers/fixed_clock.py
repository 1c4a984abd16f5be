"""A clock for codecs, which ask for nothing but the time of day."""

from datetime import UTC, datetime


class FixedClock:
    def __init__(self, moment=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)):
        self.moment = moment

    def now(self):
        return self.moment
