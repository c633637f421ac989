"""What a test needs of the machine: without it the test is skipped and says why, or fails where all is required."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip, or fail under REQUIRE_ALL=1."""
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(f"REQUIRE_ALL=1, but there is {what}")
    pytest.skip(what)
