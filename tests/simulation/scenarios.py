"""What scenarios have in common, and the scenarios by name.

To add one, write a subclass of :class:`Scenario` in a module of its own and name it in :data:`MODULES`.
"""

from importlib import import_module
from types import MappingProxyType

import attrs

from rbim import Credentials

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")

MODULES = {
    "job": "JobScenario",
    "inbox": "InboxScenario",
    "service": "ServiceScenario",
}
"""The class of each scenario; its module has the scenario's name."""


class Scenario:
    """A system, its troubles and its invariants, in the ``world`` of one seed.

    ``TROUBLES`` are the kinds of trouble that may happen; minimising switches them off in this order. ``SIZES`` is an attrs
    class whose fields are the numbers and choices of a run: :meth:`draw` makes one from the streams of the world, and
    ``settings`` replaces fields by name. ``SHRINKS`` maps those fields that minimising may reduce to their least values.
    """

    TROUBLES = ()
    SHRINKS = MappingProxyType({})

    def __init__(self, world, settings):
        self.world = world
        self.sizes = attrs.evolve(self.draw(), **settings)
        world.note("scenario", str(self.sizes))

    def draw(self):
        """Draw the sizes of a run."""
        raise NotImplementedError

    async def main(self):
        """Run the scenario and check its invariants."""
        raise NotImplementedError

    @property
    def served(self):
        """Requests or deliveries so far, for measuring."""
        return 0


def scenario(name):
    """Return the class of a scenario."""
    return getattr(import_module(f".{name}", __package__), MODULES[name])
