"""Configuration: what is told goes before environment variables, and these before the profiles of ``rbim.toml``.

::

    profile = "test"                    # the profile where nobody names one

    [profiles.test]
    base_url = "https://gw.example:8883"
    app_id = "..."
    token_file = "test.token"           # beside this file

A profile of the project's file goes before one of the same name in the user's, key by key. No token is ever in an error
that is raised here.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.config.config import Config as Config, Setting as Setting, Source as Source, load as load
else:
    __getattr__, __dir__ = lazy_names(__name__)
