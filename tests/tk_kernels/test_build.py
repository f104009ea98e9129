"""`build` compiles once, reuses cached builds, and reports a missing requirement in one sentence."""

import os
import re
import shutil
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import pytest

from bench.commands.build import build_kernels
from bench.errors import UserError
from tests.harness.harness_helpers import git
from tk_kernels import build, thunderkittens
from tk_kernels.build import missing_requirement
from tk_kernels.thunderkittens import fetch_thunderkittens, find_thunderkittens, thunderkittens_version

NAME = "ttt_linear/forward_sm90"
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4fastPf' for 'sm_90a'
ptxas info    : Function properties for _Z4fastPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 384 bytes smem, 1232 bytes cmem[0]
ptxas info    : Compiling entry function '_Z4slowPf' for 'sm_90a'
ptxas info    : Function properties for _Z4slowPf
    160 bytes stack frame, 184 bytes spill stores, 212 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 160 bytes cumulative stack size
"""
FAKE_NVCC = """\
#!/bin/sh
case "$1" in --version) echo "Cuda compilation tools, release {version}"; exit 0;; esac
echo called >> "{calls}"
{body}
while [ $# -gt 1 ]; do shift; done
echo library > "$1"
cat >&2 <<'LOG'
{log}LOG
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    pytest.importorskip("tvm_ffi")

    class Machine:
        calls = tmp_path / "calls"
        source = tmp_path / "tk_kernels" / "ttt_linear" / "forward_sm90.cu"

        def nvcc(self, version="13.0, V13.0.88", body=""):
            path = tmp_path / "cuda" / "bin" / "nvcc"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(FAKE_NVCC.format(version=version, calls=self.calls, body=body, log=LOG))
            path.chmod(path.stat().st_mode | stat.S_IEXEC)

        def without_nvcc(self):
            monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
            monkeypatch.setattr(shutil, "which", lambda tool: None)
            monkeypatch.setattr(build, "DEFAULT_NVCC", tmp_path / "none" / "nvcc")

        def times_compiled(self):
            return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    headers = tmp_path / "headers"
    (headers / "include").mkdir(parents=True)
    (headers / "include" / "kittens.cuh").write_text("")
    Machine.source.parent.mkdir(parents=True)
    Machine.source.write_text("// one")
    monkeypatch.setattr(build, "SOURCE_ROOT", tmp_path / "tk_kernels")
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(headers))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("TTT_BENCH_CACHE", str(tmp_path / "cache"))
    machine = Machine()
    machine.nvcc()
    return machine


def test_second_build_compiles_nothing(machine):
    first, second = build.build(NAME), build.build(NAME)
    assert (first.compiled, second.compiled) == (True, False)
    assert machine.times_compiled() == 1
    assert second.folder == first.folder
    assert (second.folder / "kernel.so").read_text() == "library\n"
    assert [kernel[1:] for kernel in map(astuple, second.resources)] == [(40, 0), (255, 184 + 212)]
    assert "fast" in second.resources[0].name


def test_each_changed_input_makes_a_new_build(machine, monkeypatch, tmp_path):
    shared = machine.source.parent.parent / "forward" / "common.cuh"
    shared.parent.mkdir()
    changes = [
        lambda: None,
        lambda: machine.source.write_text("// two"),
        lambda: shared.write_text("// shared by all"),
        lambda: (machine.source.parent / "forward.cuh").write_text("// shared by the files next to it"),
        lambda: machine.nvcc(version="13.1, V13.1.2"),
        lambda: monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-lineinfo"),
        lambda: monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo"),
        lambda: monkeypatch.setattr(build.platform, "machine", lambda: "aarch64"),
        lambda: monkeypatch.setattr(build, "version", lambda package: "9.9"),
        lambda: (tmp_path / "headers" / "include" / "kittens.cuh").write_text("// changed"),
    ]
    for number, change in enumerate(changes, 1):
        change()
        assert [build.build(NAME).compiled, build.build(NAME).compiled] == [True, False]
        assert machine.times_compiled() == number


def test_a_copied_cache_works_without_nvcc_and_headers(machine, monkeypatch):
    made = build.build(NAME).build_inputs
    machine.without_nvcc()
    monkeypatch.setenv("THUNDERKITTENS_ROOT", "/nowhere")
    assert not build.build(NAME).compiled
    assert build.build(NAME).build_inputs == made
    assert (made["compiler"], len(made["thunderkittens"])) == ("13.0, V13.0.88", 12)
    assert build.build_inputs(NAME)["compiler"] is None
    machine.source.write_text("// not what was built")
    with pytest.raises(build.BuildError, match="no nvcc"):
        build.build(NAME)


def test_headers_are_identified_by_the_pinned_commit_or_a_digest(machine, monkeypatch, tmp_path):
    digest = thunderkittens_version(tmp_path / "headers")
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_DIGEST", digest)
    assert thunderkittens_version(tmp_path / "headers") == thunderkittens.THUNDERKITTENS_COMMIT
    (tmp_path / "headers" / "include" / "kittens.cuh").write_text("// changed")
    assert thunderkittens_version(tmp_path / "headers") not in (digest, thunderkittens.THUNDERKITTENS_COMMIT)


def test_missing_headers_are_named(machine, monkeypatch):
    monkeypatch.setenv("THUNDERKITTENS_ROOT", "/nowhere")
    monkeypatch.setattr(build, "KERNELS", (NAME,))
    for command in (lambda: build.build(NAME), build_kernels):  # `ttt-bench build` fetches none instead
        with pytest.raises((build.BuildError, UserError), match=r"THUNDERKITTENS_ROOT=/nowhere has no include/kittens"):
            command()
    monkeypatch.delenv("THUNDERKITTENS_ROOT")
    with pytest.raises(build.BuildError, match="no ThunderKittens headers"):
        build.build(NAME)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("note\nforward.cu(3): error: no ;\n1 error", "forward.cu(3): error: no ;"),
        ("note\ngcc: not found\nnvcc fatal : x", "gcc: not found nvcc fatal : x"),
        ("ld: no -lx\ncollect2: error: 1", "ld: no -lx collect2: error: 1"),
    ],
)
def test_compiler_error_is_one_sentence_and_leaves_no_build(machine, output, reason):
    machine.nvcc(body=f'printf "%s" "{output}" >&2; exit 2')
    with pytest.raises(build.BuildError, match=re.escape(f"nvcc failed: {reason} (full output: ")) as caught:
        build.build(NAME)
    assert "\n" not in str(caught.value)
    machine.nvcc()
    assert build.build(NAME).compiled


def test_a_cache_that_cannot_be_used_is_one_sentence(machine, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TTT_BENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match=rf"{tmp_path}/file \(set TTT_BENCH_CACHE .*Not a directory"):
        build.build(NAME)
    with pytest.raises(build.BuildError, match=rf"ThunderKittens .*{tmp_path}/file \(set TTT_BENCH_CACHE"):
        fetch_thunderkittens()


def test_an_nvcc_that_cannot_be_run_is_one_sentence(machine, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "cuda" / "bin" / "nvcc").chmod(0o644)
    reason = rf"nvcc.*{tmp_path}/cuda/bin/nvcc: Permission denied"
    with pytest.raises(build.BuildError, match=reason):
        build.build(NAME)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert re.search(reason, build.unavailable(NAME))


def test_concurrent_builds_compile_once(machine):
    machine.nvcc(body="sleep 0.5")
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build.build, [NAME] * 4))
    assert machine.times_compiled() == 1
    assert sorted(each.compiled for each in built) == [False, False, False, True]
    assert {each.folder for each in built} == {built[0].folder}


def test_a_killed_build_is_repeated(machine):
    machine.nvcc(body="kill -9 $PPID")
    building = os.fork()
    if not building:
        build.build(NAME)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(building, 0)[1]) == -signal.SIGKILL
    machine.nvcc()
    assert build.build(NAME).compiled


@pytest.mark.parametrize(
    ("file", "text"),
    [("build.json", ""), ("build.json", None), ("kernel.so", "libr"), ("kernel.so", None), ("compiler.log", None)],
)
def test_a_damaged_or_partly_copied_build_is_repeated(machine, file, text):
    path = build.build(NAME).folder / file
    path.unlink() if text is None else path.write_text(text)
    assert [build.build(NAME).compiled, build.build(NAME).compiled] == [True, False]


def test_unknown_kernel_is_named():
    with pytest.raises(build.BuildError, match=r"ttt_cubic/forward\.cu"):
        build.build("ttt_cubic/forward")


def test_nvcc_is_found_in_cuda_home_then_path_then_the_default(monkeypatch, tmp_path):
    found = [tmp_path / name / "bin" / "nvcc" for name in ("home", "path", "default")]
    for file in found:
        file.parent.mkdir(parents=True)
        file.write_text("")
        file.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setattr(build, "DEFAULT_NVCC", found[2])
    for file in found:
        assert build.find_nvcc() == file
        file.unlink()
    assert build.find_nvcc() is None


def test_no_gpu_and_an_older_gpu_are_reasons(machine, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA GPU" in build.unavailable(NAME)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A100")
    assert re.search("A100 .*8.0", build.unavailable(NAME))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert build.unavailable(NAME) == ""
    machine.without_nvcc()
    assert "no nvcc" in build.unavailable(NAME)


@pytest.fixture
def remote(tmp_path, monkeypatch):
    folder = tmp_path / "remote"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "kittens.cuh").write_text("// one line\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "headers"]):
        git(folder, *arguments)
    commit = git(folder, "rev-parse", "HEAD")
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_URL", str(folder))
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_COMMIT", commit)
    monkeypatch.setenv("TTT_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("THUNDERKITTENS_ROOT", raising=False)
    return commit


def test_a_fetch_checks_out_the_pinned_commit_with_the_users_settings(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_URL", "mirror:")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "remote" / ".git"))  # as in a git hook
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[url "{tmp_path}/remote"]\ninsteadOf = "mirror:"\n[core]\nautocrlf = true\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    root = fetch_thunderkittens()
    monkeypatch.delenv("GIT_DIR")
    assert find_thunderkittens() == root
    assert git(root, "rev-parse", "HEAD") == remote
    assert (root / "include" / "kittens.cuh").read_bytes() == b"// one line\n"
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_URL", "/nowhere")
    assert fetch_thunderkittens() == root  # already there


def test_a_fetch_that_fails_leaves_no_headers(remote, tmp_path, monkeypatch):
    def incomplete_clone(folder, *arguments):
        (folder / "include").mkdir()
        (folder / "include" / "kittens.cuh").write_text("")
        raise build.BuildError("the network is down")

    monkeypatch.setattr(thunderkittens, "_git", incomplete_clone)
    with pytest.raises(build.BuildError, match="network"):
        fetch_thunderkittens()
    assert find_thunderkittens() is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".fetch.lock"]


def test_failed_fetch_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(thunderkittens, "THUNDERKITTENS_URL", str(tmp_path / "nowhere"))
    monkeypatch.setenv("TTT_BENCH_CACHE", str(tmp_path / "cache"))
    with pytest.raises(build.BuildError, match="could not be fetched"):
        fetch_thunderkittens()
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(build.BuildError, match="git is not installed"):
        fetch_thunderkittens()


@pytest.mark.skipif(missing_requirement() != "", reason=missing_requirement())
@pytest.mark.parametrize("name", build.KERNELS)
def test_no_kernel_spills(name):
    kernels = build.build(name).resources
    assert kernels
    assert [kernel for kernel in kernels if kernel.spilled_bytes] == []
