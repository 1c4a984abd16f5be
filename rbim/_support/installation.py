"""The command that installs an extra of rbim, for messages."""

from __future__ import annotations

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra to this installation.

    Where rbim is installed, from an index or from a clone, its name is enough: pip only adds what the extra needs. Where it
    is not, such as in a zip file or on PYTHONPATH, the command is for a clone of the repository.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("rbim")
    except PackageNotFoundError:
        return f'python -m pip install ".[{extra}]", in a clone of the repository of rbim'
    return f'python -m pip install "rbim[{extra}]"'
