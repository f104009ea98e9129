"""Reports of Nsight Compute on a site: no name of a host, a user or a folder remains."""

import pytest
from small_profiles import case, profile, run_with

from harness.schema.profile import profile_path
from reports.profiles.shared_report import without_names
from reports.site.build import write_site

HOST, FOLDER = b"gpu-host-17", b"/home/alice/secret-project/"
KERNEL = b"ttt_linear_forward<64>"


def field(number, content):
    """Return a protobuf field: a number below 128, or a text or message of up to 16,383 bytes."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    size = len(content)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7]) + content


def sized(message):
    return len(message).to_bytes(4, "little") + message


def a_report(payload=KERNEL):
    """Write a report of one block by ProfilerReport.proto: session, strings, process, and a payload."""
    system = field(1, b"Linux") + field(5, HOST) + field(7, field(1, b"10.1.2.3"))
    launched = field(1, FOLDER + b"venv/bin/python") + field(2, FOLDER) + field(4, b"HF_TOKEN=hf_abcdefgh")
    session = field(1, 99) + field(3, system) + field(9, launched) + field(11, b"ncu --export " + FOLDER + b"a.ncu-rep")
    process = field(1, 99) + field(2, HOST) + field(3, FOLDER + b"venv/bin/python")
    block = field(3, session) + field(4, field(1, FOLDER + b"kernel.py")) + field(5, len(payload)) + field(6, process)
    return b"NVR\0" + sized(field(1, 7)) + sized(block) + payload


def names_in(content):
    names = (HOST, b"alice", b"secret", b"HF_TOKEN", b"hf_", b"10.1.2.3", b"--export", b"venv", b"home")
    return [name for name in names if name in content]


def test_no_name_remains_and_everything_else_is_where_it_was():
    report = a_report(KERNEL + FOLDER + b"kernel.cu\0/root/x.cu")
    shared = without_names(report)
    assert (len(names_in(report)), names_in(shared), len(shared)) == (9, [], len(report))
    assert b"/root/" not in shared
    assert b"kernel.py" in shared
    assert shared.endswith(b"kernel.cu\0/xxxx/x.cu")
    for text in (b"Linux", KERNEL):
        assert shared.index(text) == report.index(text)


@pytest.mark.parametrize(
    "report",
    [b"", b"PK", b"NVR\0", a_report()[:60], a_report()[:-3], a_report() + b"\0", a_report(KERNEL + HOST)],
    ids=["empty", "zip", "start", "truncated", "short payload", "long", "host in the payload"],
)
def test_a_report_that_is_not_understood_is_refused(report):
    with pytest.raises(ValueError, match=r"."):
        without_names(report)


def test_a_site_offers_reports_without_names_and_leaves_out_others(tmp_path):
    run = run_with(tmp_path, profile(case()), profile(case(batch=16)))
    keys = [case(batch=batch).key for batch in (1, 16)]
    for key, report in zip(keys, (a_report(), a_report(KERNEL + HOST)), strict=True):
        profile_path(run.folder, key).with_suffix(".ncu-rep").write_bytes(report)
    write_site([run.folder], tmp_path / "site")
    (shared,) = (tmp_path / "site" / "downloads").glob("*.ncu-rep")
    assert keys[0] in shared.name
    assert names_in(shared.read_bytes()) == []
    (page,) = (tmp_path / "site" / "runs").glob("*.html")
    assert f'href="../downloads/{shared.name}" download' in page.read_text()
    profile_path(run.folder, keys[0]).with_suffix(".ncu-rep").unlink()
    assert (write_site([run.folder], tmp_path / "site").drawn, shared.exists()) == (1, False)
