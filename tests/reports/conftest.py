"""Fixtures for the tests of the reports."""

import pytest


@pytest.fixture(scope="module")
def browser():
    """See browsing.browser."""
    import browsing

    with browsing.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def one_place(tmp_path_factory):
    """A folder for a page that one test looks at: where the next has its address, its programs are compiled already."""
    return tmp_path_factory.mktemp("page")
