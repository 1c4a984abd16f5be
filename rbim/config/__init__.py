"""Configuration: arguments, environment variables, profiles in ``rbim.toml``.

Arguments take precedence over environment variables, and these over profiles. :func:`load` reads them; each value has its
source.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.config.config import (
        Config as Config,
        ConfigOptions as ConfigOptions,
        Setting as Setting,
        Source as Source,
        load as load,
    )
    from rbim.config.files import ConfigPlace as ConfigPlace, Ignored as Ignored
else:
    __getattr__, __dir__ = lazy_names(__name__)
