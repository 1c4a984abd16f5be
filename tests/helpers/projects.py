"""A project's configuration file that the user has trusted."""

from rbim.config.trust import remember


def write_project(path, text):
    """Write a file and trust this content of it; return its path."""
    path.write_text(text, encoding="utf-8")
    remember(path.parent.resolve() / path.name, path.read_bytes())
    return path
