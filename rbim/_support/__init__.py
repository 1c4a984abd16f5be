"""Small tools that do not depend on the platform. Private: not part of the public interface."""
