"""Lock files resolve to what they name, and say why a release is not the newest; no index: those tests are skipped."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parent.parent / "bench" / "requirements"
# Each environment's files; mamba.txt is installed on top of cuda.txt.
ENVIRONMENTS = {"cpu": ["cpu.txt"], "mamba": ["cuda.txt", "mamba.txt"], "vllm": ["vllm.txt"]}
NO_WHEELS = ("causal-conv1d", "mamba-ssm")  # their metadata needs nvcc
LIMIT_S = 240
LOCKED = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", re.MULTILINE)


def plain(text: str) -> str:
    """Requirements without hashes, for which pip would download whole packages."""
    lines = re.sub(r"\s*\\\n\s+--hash=\S+", "", text).splitlines()
    return "\n".join(line for line in lines if not line.startswith(NO_WHEELS))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def resolving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen, Path]]]:
    """A pip for each environment, all at once, and its folder: they mostly wait for the index."""
    started = {}
    options = "--quiet --use-feature=fast-deps --retries=1 --timeout=15 --report=out.json --requirement=in.txt"
    target = "--dry-run --ignore-installed --only-binary=:all: --python-version=3.12 --target=none"
    for name, files in ENVIRONMENTS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "in.txt").write_text("\n".join(plain((REQUIREMENTS / file).read_text("utf-8")) for file in files))
        command = [sys.executable, "-m", "pip", "install", *options.split(), *target.split()]
        with (folder / "stderr").open("w") as stderr:
            started[name] = subprocess.Popen(command, cwd=folder, stdout=stderr, stderr=stderr), folder
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


def refuse_or_skip(stderr: str) -> None:
    """Skip without a network, or where the index offers no release at all of a package; fail for another error."""
    for line in stderr.splitlines():
        if "connection broken by" in line or "(from versions: none)" in line:
            pytest.skip(f"the package index does not answer: {line}")
    pytest.fail(f"pip cannot resolve it: {stderr[-2000:]}", pytrace=False)


@pytest.mark.index
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_lock_file_resolves_to_what_it_names(resolving: dict[str, tuple[subprocess.Popen, Path]], name: str) -> None:
    process, folder = resolving[name]
    try:
        process.wait(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index took more than {LIMIT_S} s")
    if process.returncode:
        refuse_or_skip((folder / "stderr").read_text("utf-8"))
    text = "\n".join((REQUIREMENTS / file).read_text("utf-8") for file in ENVIRONMENTS[name])
    found = json.loads((folder / "out.json").read_text("utf-8"))["install"]
    needed = {normal(each["metadata"]["name"]): each["metadata"]["version"].partition("+")[0] for each in found}
    locked = {normal(match[1]): match[2] for match in LOCKED.finditer(plain(text))}
    if "--hash" not in text:  # PyTorch of another index needs packages that this lock has not
        needed = {package: version for package, version in needed.items() if package in locked}
    assert needed == locked
    if "--hash" in text:
        hashes = {package["download_info"]["archive_info"]["hashes"]["sha256"] for package in found}
        assert hashes <= set(re.findall(r"--hash=sha256:(\w+)", text))


@pytest.mark.parametrize("name", ["cpu", "cuda", "mamba", "vllm"])
def test_a_release_below_the_newest_has_its_reason(name: str) -> None:
    """Another package holds it, or a comment above the line of the .in file or of pyproject.toml that pins it."""
    text = (REQUIREMENTS / f"{name}.txt").read_text("utf-8")
    assert text.startswith("# Written by `make lock` from ")
    pins = (REQUIREMENTS / f"{name}.in").read_text("utf-8")
    for block in text.split("# newest: ")[1:]:
        lines = block.splitlines()[1:]
        package = re.split(r"==|\[", lines[0])[0]
        end = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith(" ")), len(lines))
        holders = {line.strip(" #") for line in lines[1:end] if line.startswith("    #")} - {"via"}
        others = {each.removeprefix("via ") for each in holders} - {"ttt-bench (pyproject.toml)"}
        own = f"-r bench/requirements/{name}.in" in others
        assert others or package in ("hypothesis", "ruff"), f"{package}: nothing holds it"  # pyproject.toml says why
        assert not own or f"# {package} " in pins, f"{name}.in: no reason for {package}"


@pytest.mark.index
def test_pip_is_the_pinned_one() -> None:
    said = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout
    pinned = LOCKED.search((REQUIREMENTS / "pip.txt").read_text("utf-8"))
    assert pinned is not None
    assert said.startswith(f"pip {pinned[2]} ")
