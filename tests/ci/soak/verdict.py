"""The verdict: a figure is flat if its trend over the second half of a run is within its bound."""

from statistics import median

from attrs import frozen


@frozen
class Bound:
    """How much a figure may grow over the second half of a run: so much in any case, and so much for 1,000 requests.

    ``at_most`` is a limit of each sample, whatever the trend is. ``unit`` is for people.
    """

    unit: str
    floor: float
    per_thousand: float = 0.0
    at_most: float | None = None


LEAST = 8  # samples

BOUNDS = {
    "memory": Bound("KiB", 1024, per_thousand=64),  # 64 bytes of a request; the rest is how the allocator divides pages
    "heap": Bound("KiB", 640, per_thousand=64),  # bytes in use, of objects with more than 512 bytes
    "blocks": Bound("objects", 4000, per_thousand=50),  # one object of 20 requests; calls in flight hold some thousand
    "descriptors": Bound("", 4),  # without those of connections
    "connections": Bound("", 12),  # as many as calls in flight, which are more while the platform is slow
    "threads": Bound("", 3),
    "tasks": Bound("", 8),
    "log": Bound("KiB", 64, per_thousand=256),  # a traceback for each handler that fails
}
LOG = Bound("KiB", 4096, at_most=12 * 1024)
"""The write-ahead log of SQLite: emptied when it has 1,000 pages (4,096 KiB), so that it rises and falls."""


@frozen(kw_only=True)
class Verdict:
    """One figure of one run. ``growth`` is its trend over the second half, ``allowed`` its bound there."""

    figure: str
    unit: str
    growth: float
    allowed: float
    highest: float
    at_most: float | None

    @property
    def flat(self):
        return self.growth <= self.allowed and (self.at_most is None or self.highest <= self.at_most)


def slope(points):
    """Return the median of the slopes between all pairs of points (Theil and Sen): a third of outliers does not move it."""
    return median(
        (later - earlier) / (end - begin)
        for number, (begin, earlier) in enumerate(points)
        for end, later in points[number + 1 :]
        if end > begin
    )


def judged(samples, bounds):
    if len(samples) < LEAST:
        raise ValueError(f"{len(samples)} samples are too few")
    late = [each for each in samples if each["at"] >= samples[-1]["at"] / 2]
    span = late[-1]["at"] - late[0]["at"]
    requests = late[-1]["counts"].get("requests", 0) - late[0]["counts"].get("requests", 0)
    return [
        Verdict(
            figure=name,
            unit=bound.unit,
            growth=slope([(each["at"], each[name]) for each in late]) * span,
            allowed=bound.floor + bound.per_thousand * requests / 1000,
            highest=max(each[name] for each in samples),
            at_most=bound.at_most,
        )
        for name, bound in bounds.items()
    ]
