"""Fixtures for the tests of the reports."""

import pytest


@pytest.fixture(scope="module")
def browser():
    """See browsing.browser."""
    import browsing

    with browsing.browser() as opened:
        yield opened
