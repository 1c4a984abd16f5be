"""The exception that ends the work of a parser."""

__all__ = ["Stop"]


class Stop(Exception):
    """Raised by a reader to stop its parser, and by h11's parser for bytes that it refuses."""
