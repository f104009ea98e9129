"""Lock files resolve to their own pins; a package or a comment explains each outdated pin."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "bench" / "requirements"
UV = ROOT / ".venv-lock" / "bin" / "python"  # by make locks
# Each environment's files; mamba.txt is installed on top of cuda.txt.
ENVIRONMENTS = {"cpu": ["cpu.txt"], "mamba": ["cuda.txt", "mamba.txt"], "vllm": ["vllm.txt"]}
NO_WHEELS = ("causal-conv1d", "mamba-ssm")  # their metadata needs nvcc
# uv downloads only metadata, so it resolves faster than pip.
RESOLVE = [str(UV), "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
RESOLVE += ["--python-version=3.12", "--only-binary=:all:"]
HASHES = re.compile(r"--hash=sha256:(\w+)")
LOCKED = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", re.MULTILINE)


def plain(text: str) -> str:
    """Return the requirements without hashes, and without NO_WHEELS: uv reads the metadata of these only with nvcc."""
    lines = re.sub(r"\s*\\\n\s+--hash=\S+", "", text).splitlines()
    return "\n".join(line for line in lines if not line.startswith(NO_WHEELS))


@pytest.mark.index
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_lock_file_resolves_to_its_own_releases(name: str) -> None:
    text = "\n".join((REQUIREMENTS / file).read_text("utf-8") for file in ENVIRONMENTS[name])
    try:
        done = subprocess.run([*RESOLVE, "-"], input=plain(text), capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index took more than 240 s")
    error = done.stderr if done.returncode else ""
    if line := re.search(".*(error sending request|[Ff]ailed to fetch|not found in the package registry).*", error):
        pytest.skip(f"the package index does not answer: {line[0].strip()}")
    assert done.returncode == 0, f"uv cannot resolve it: {error[-2000:]}"
    needed, locked = (dict(LOCKED.findall(each.lower().replace("_", "-"))) for each in (done.stdout, plain(text)))
    if "--hash" not in text:  # PyTorch of another index needs packages that this lock has not
        needed = {package: version for package, version in needed.items() if package in locked}
    assert needed == locked
    blocks = [block for block in re.split(r"\n(?=\S)", text) if not block.startswith(NO_WHEELS)]
    gone = set(HASHES.findall("\n".join(blocks))) - set(HASHES.findall(done.stdout))
    assert not gone, "the index has these files no longer"


@pytest.mark.parametrize("name", ["cpu", "cuda", "mamba", "pip", "vllm"])
def test_a_release_below_the_newest_has_its_reason(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text("utf-8")
    assert text.startswith("# Written by `make lock` from ")
    pins = (REQUIREMENTS / f"{name}.in").read_text("utf-8")
    for pin in re.findall(r"^# newest: .*\n(.*(?:\n .*)*)", text, re.MULTILINE):
        package = re.split(r"==|\[", pin)[0]
        holders = set(re.findall(r"^    # +(?:via )?(.+)", pin, re.MULTILINE)) - {"via", "ttt-bench (pyproject.toml)"}
        assert holders or package == "ruff", f"{package}: nothing holds it"  # pyproject.toml says why
        own = f"-r bench/requirements/{name}.in" in holders
        assert not own or f"# {package} " in pins, f"{name}.in: no reason for {package}"
