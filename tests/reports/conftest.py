"""Fixtures for the tests of the reports."""

import fcntl

import pytest


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all pages, because it starts slowly and reuses the compiled scripts of a page."""
    import browsing

    with browsing.browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def paper_page(request, tmp_path_factory):
    """The page of `synthetic_records.paper`, written once for all pytest processes."""
    import browsing
    import synthetic_records

    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # xdist workers have subfolders
        folder = folder.parent
    path = folder / "paper.html"
    with (folder / "paper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            browsing.save(synthetic_records.paper(), folder, "paper.part").rename(path)
    return path


@pytest.fixture
def page(shared):
    """The page that a module's tests share; each test undoes its changes."""
    import browsing

    with browsing.in_front(*shared) as page:
        yield page


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory):
    """A folder in which tests write pages to one path, so that Chromium reuses the compiled scripts."""
    return tmp_path_factory.mktemp("page")
