"""What pytest has to know of the tests, and fixtures that several folders use."""

import pytest

pytest.register_assert_rewrite("helpers")
