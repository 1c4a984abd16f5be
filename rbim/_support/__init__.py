"""Small tools that know nothing of the platform.

Private: nothing here is part of the public interface.
"""
