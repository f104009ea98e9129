"""Write the lock files of this folder from pyproject.toml and the .in files, by `make lock`.

A comment above each pin of an older release names the newest release.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PYPROJECT = FOLDER.parent.parent / "pyproject.toml"
HEADER = "# Written by `make lock` from {sources}; do not edit.\n# {what}\n"
LINUX = ("--python-platform", "x86_64-manylinux_2_35", "--generate-hashes", "--python-version", "3.12")
PROJECT = (str(PYPROJECT), "--extra", "dev", "--extra", "gpu")
# By lock file: the second line of its header, and the arguments of `uv pip compile` before the .in file.
LOCKS = {
    "cpu": (
        "No GPU, Python 3.11 to 3.13. No releases that need 3.12, and no CUDA libraries: PyTorch installs them.",
        (*PROJECT, "--python-version", "3.11"),
    ),
    "cuda": ("A CUDA GPU: Linux on x86-64, Python 3.12, CUDA 13.", (*PROJECT, *LINUX, "--only-binary", ":all:")),
    "pip": ("Installed first: old releases refuse an extra, such as pydantic[email], with hashes.", LINUX),
    "mamba": (
        "On top of cuda.txt, without dependencies: mamba-ssm and causal-conv1d are built with nvcc.",
        ("--no-deps", *LINUX),
    ),
    "vllm": ("vLLM: Linux on x86-64, Python 3.12, CUDA 13.", (*LINUX, "--only-binary", ":all:")),
}
PACKAGE = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", re.MULTILINE)
CUDA_PACKAGE = re.compile(r"^(?:nvidia-(?!ml-py)|cuda-)")


def compiled(*arguments: str, requirements: str = "") -> str:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-emit-index-url"]
    command += ["--no-emit-find-links", "--config-file", str(FOLDER / "uv.toml"), *arguments]
    done = subprocess.run(
        command, cwd=PYPROJECT.parent, input=requirements, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def lock(name: str) -> str:
    """Return the content of the lock file for `name`, a key of LOCKS."""
    what, arguments = LOCKS[name]
    text = compiled(*arguments, str((FOLDER / f"{name}.in").relative_to(PYPROJECT.parent)))
    blocks = re.split(r"^(?=[\w.-]+(?:\[[\w,-]+\])?==)", text, flags=re.MULTILINE)
    if name == "cpu":
        blocks = [block for block in blocks if not CUDA_PACKAGE.match(block)]
    text = "".join(blocks)
    names = "\n".join(name for name, _ in PACKAGE.findall(text))
    options = [each for each in arguments if each not in (*PROJECT, "--generate-hashes", "--no-deps")]
    newest = dict(PACKAGE.findall(compiled(*options, "--no-deps", "-", requirements=names)))
    sources = f"{name}.in and pyproject.toml" if PROJECT[0] in arguments else f"{name}.in"
    text = PACKAGE.sub(lambda m: m[0] if m[2] == newest[m[1]] else f"# newest: {newest[m[1]]}\n{m[0]}", text)
    return HEADER.format(sources=sources, what=what) + text


for each in sys.argv[1:] or LOCKS:
    (FOLDER / f"{each}.txt").write_text(lock(each), "utf-8")
