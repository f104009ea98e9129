"""A run's files have the umask's mode; Git LFS pointers are refused, hidden files of file managers are ignored."""

import os
import stat
from pathlib import Path

import pytest
from harness_helpers import case, file_of, new_run, ok_record

from harness.schema.files import write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_the_umask_sets_the_mode_of_every_file(
    request: pytest.FixtureRequest, folder: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    request.addfinalizer(lambda: os.umask(before))
    run = new_run(folder, [case()])
    run.record_file(run.jobs[0]).append(ok_record())
    write_atomically(folder / "page.html", "x")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}


def test_files_of_file_managers_are_ignored(folder: Path) -> None:
    folder.mkdir()
    for name in (".DS_Store", "._run.json"):
        (folder / name).write_bytes(b"\x00\x05\x16\x07")
    run = new_run(folder, [case()])
    file_of(folder).append(ok_record())
    (folder / "profiles").mkdir()
    for name in ("records/._fake-cpu.jsonl", "profiles/._0123456789abcdef.json"):
        (folder / name).write_bytes(b"\x00\x05\x16\x07")
    assert len(run.records()) == 1
    assert run.profiles() == {}


@pytest.mark.parametrize("name", ["run.json", "records/fake-cpu.jsonl"])
def test_a_git_lfs_pointer_is_refused_and_stays(folder: Path, name: str) -> None:
    new_run(folder, [case()])
    file_of(folder).append(ok_record())
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1"
    (folder / name).write_text(pointer)
    with pytest.raises(RecordError, match=r": cannot be read: Is a Git LFS pointer; run `git lfs pull`$"):
        Run.open(folder).records()
    if name != "run.json":
        with pytest.raises(RecordError, match=r": cannot be written: Is a Git LFS pointer; run `git lfs pull`$"):
            file_of(folder).append(ok_record())
        assert (folder / name).read_text() == pointer
