"""`ttt-bench site` as a user calls it."""

import signal
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from command_line import ROOT, called, one_sentence, started, ttt_bench

COMMITTED = ROOT / "reports" / "results" / "h100"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = ttt_bench("site", COMMITTED, "-o", "site", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote site/index.html: 1 run\n"
    assert done.stderr == "[1/1] h100\n"
    return folder / "site"


def test_the_committed_run_has_a_site(site):
    assert "NVIDIA H100 80GB HBM3" in (site / "index.html").read_text()


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
        for path in ("../run.json", "%2e%2e/pyproject.toml"):
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
        server.communicate(timeout=60)
    assert server.returncode == 0
    with socket.socket() as freed:
        freed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        freed.bind(("127.0.0.1", port))
