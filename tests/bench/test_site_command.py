"""`ttt-bench site` as a user calls it."""

import os
import select
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import ROOT, called, one_sentence, started, ttt_bench

COMMITTED = ROOT / "reports" / "results" / "h100"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = ttt_bench("site", COMMITTED, "-o", "site", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote site/index.html: 1 run, 1 drawn, 0 as they were\n"
    assert done.stderr == "[1/1] h100\n"
    return folder / "site"


def test_the_committed_run_has_a_site(site):
    assert "NVIDIA H100 80GB HBM3" in (site / "index.html").read_text()


def test_a_second_build_says_that_nothing_was_drawn(site):
    done = called("site", COMMITTED, "-o", site, cwd=site.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 run, 0 drawn, 1 as they were\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["site", "none", "-o", "new"], "none: no such folder"),
        (["site", ".", "-o", "new"], "is not a run"),
        (["site", COMMITTED, "-o", ROOT], "is no site of ttt-bench"),
        (["site", COMMITTED], "--output"),
        (["site", "-o", "new"], "site: name run folders, or add --serve"),
        (["site", "-o", "none", "--serve"], "none: no such folder"),
        (["site", "-o", ROOT, "--serve"], "is no site of ttt-bench"),
        (["site", "-o", COMMITTED, "--serve"], "is a run; make a site of it: ttt-bench site"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(tmp_path, arguments, words):
    assert words in one_sentence(called(*arguments, cwd=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_preview_serves_the_site_on_the_loopback_address_until_it_is_interrupted(site):
    server = subprocess.Popen(
        **started("site", "-o", site, "--serve", "--port", "0", cwd=ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        address = server.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            assert "runs/h100-" in answer.read().decode()
        for path in ("runs/", "../run.json", "%2e%2e/pyproject.toml"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path)
        port = int(address.rstrip("/").rpartition(":")[2])
        done = called("site", "-o", site, "--serve", "--port", port, cwd=site.parent)
        assert (done.returncode, done.stderr) == (
            2,
            f"ttt-bench: --port {port}: cannot be used: Address already in use\n",
        )
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors) == (0, "")
    with socket.socket() as freed:
        freed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        freed.bind(("127.0.0.1", port))


def descriptors_of_children(pid: int, least: int) -> list[int]:
    """Wait for `least` children of a process; return a descriptor of each, readable once that child has ended."""
    deadline = time.monotonic() + 120
    while len(found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) < least:
        assert time.monotonic() < deadline, f"{len(found)} children"
        time.sleep(0.05)
    return [os.pidfd_open(int(child)) for child in found]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core draws all runs in one process")
def test_the_processes_that_draw_end_with_a_killed_command(tmp_path):
    runs = [tmp_path / f"run-{number}" for number in range(9)]  # as many as several processes draw
    for run in runs:
        shutil.copytree(COMMITTED, run)
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:  # the command waits to write to a full pipe, so it cannot end before the signal
            os.write(write, bytes(1 << 16))
    os.set_blocking(write, True)
    command = subprocess.Popen(**started("site", *runs, "-o", "site", cwd=tmp_path), stderr=write)
    children: list[int] = []
    try:
        children = descriptors_of_children(command.pid, 3)  # two that draw, and multiprocessing's resource tracker
        command.kill()
        assert command.wait() == -signal.SIGKILL
        os.close(read)  # the resource tracker, too, writes to the pipe before it ends
        for child in children:
            assert select.select([child], [], [], 120)[0], "a process that draws lives on"
    finally:
        command.kill()
        for descriptor in (write, *children):
            os.close(descriptor)
