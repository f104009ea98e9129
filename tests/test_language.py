"""The documentation, docstrings and comments use the field's words and short sentences; documented commands parse."""

import ast
import io
import re
import shlex
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import typer

from bench.cli import app

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bench", "harness", "reports", "tests", "tk_kernels")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))])
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for name in FOLDERS
    for path in (ROOT / name).rglob("*.py")
    if path.name != Path(__file__).name
)
PRAGMAS = re.compile(r"# ?(fmt|noqa|type|mypy|ruff|pragma)\b")
COMMANDS = ("README.md", "bench/README.md", "CONTRIBUTING.md")
LONGEST = 30  # words of a sentence
# What not to write, and what to write for it; a gate of a network (SwiGLU, output) is the field's word.
BANNED = {
    r"prefill|decode": "forward, generate",
    r"time between tokens|between tokens": "ITL",
    r"(?<!time to )first token": "TTFT",
    r"products?(?! (GEMM|kernel))": "GEMM, matmul",
    r"gaps?|host adds": "CPU overhead, launch overhead, idle",
    r"floors?": "roofline bound, lower bound",
    r"ceilings?": "measured peak",
    r"witness(es)?|verdicts?|judges?(?! only)|inspectors?": "check",
    r"(?<!swiglu )(?<!output )gates?": "check",
    r"what bounds": "bottleneck, memory-bound",
    r"at (its|the) power cap": "power-capped",
    r"heat slowed": "thermally throttled",
    r"(?<!in )places?": "device, GPU slot",
    r"marked": "flagged",
    r"cut": "truncated",
    r"others used": "contended",
    r"what (it|the model) keeps": "state, KV cache",
    r"told|asked|said": "reported, requested",
    r"beside": "next to",
    r"but for": "except",
    r"(µs|ms|mj|time|times) a token": "per token",
    r"by hand(?! on an h100)|not kept": "a number from a run",
}
STARTS = ("Of", "What", "Whose", "As of", "So that")
GLOSSARY = {"harness/README.md": ("prefill", "decode")}  # the glossary explains the other words
README_LINES, README_NUMBERS = 200, 60
ALL_WORDS = 15_000  # of all documents, by `wc -w`


def prose(text: str) -> str:
    for pattern, instead in (
        (r"<!-- table .*?<!-- end -->|<!--.*?-->|^```.*?^```", ""),
        (r"`[^`]*`", "code"),
        (r"\]\([^)]*\)", "]"),
        (r"https?://\S+", "link"),
    ):
        text = re.sub(pattern, instead, text, flags=re.DOTALL | re.MULTILINE)
    return text


def sentences(text: str) -> list[str]:
    parts: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)", prose(text)):
        cells = block.split("|") if block.lstrip().startswith("|") else [re.sub(r"^\s*(?:[-*#]+|\d+\.)\s+", "", block)]
        for cell in cells:
            parts += re.split(r"(?<=[.?!:;])\s+", " ".join(cell.split()))
    return [part for part in parts if part]


def long_sentences(text: str) -> list[str]:
    return [each for each in sentences(text) if len(re.findall(r"[^\W_][\w'’.,/-]*", each)) > LONGEST]


def banned_words(text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    found = []
    for pattern, instead in BANNED.items():
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", prose(text).lower().replace("\n", " ")):
            if match[0] not in allowed:
                found.append(f"{match[0]}: write {instead}")
    starts = tuple(f"{start} " for start in STARTS)
    return found + [each for each in sentences(text) if each.startswith(starts) and not each.endswith("?")]


def code_text(source: str) -> str:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    paragraphs, previous = [text for text in docstrings if text], (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or PRAGMAS.match(token.string):
            continue
        text = token.string.lstrip("# ")
        row, column = token.start
        if previous == (row - 1, column):
            paragraphs[-1] += f"\n{text}"
        else:
            paragraphs.append(text)
        previous = token.start
    return re.sub(r"\[[^\[\]]*\]", "", "\n\n".join(paragraphs))  # without shapes


def numbers(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"(?<![\w./-])\d[\d.,]*", re.sub(r"<!-- (table|end).*?-->", "", prose))


def commands(text: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = "\n".join(code for language, code in fences if not language).replace("\\\n", " ")
    cells = re.findall(r"^\|.*`(ttt-bench [^`]+)`", text, re.MULTILINE)
    lines = [line.removeprefix(".venv/bin/") for line in blocks.splitlines()]
    return [line for line in [*lines, *cells] if line.startswith("ttt-bench ")]


@pytest.mark.parametrize("name", NAMES + MODULES)
def test_the_fields_words_and_short_sentences(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    text = code_text(text) if name in MODULES else text
    assert banned_words(text, GLOSSARY.get(name, ())) + long_sentences(text) == []


def test_the_readme_is_short_and_begins_with_what_to_type():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    assert len(numbers(text)) <= README_NUMBERS
    assert text.splitlines().index("```") < 29  # the first command is at most at line 30


def test_the_documents_are_short():
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in DOCUMENTS) <= ALL_WORDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_documents_parses(name):
    known = typer.main.get_command(app).commands
    found = commands((ROOT / name).read_text(encoding="utf-8"))
    assert found
    for line in found:
        command, *arguments = shlex.split(line, comments=True)[1:]
        known[command].make_context(command, arguments)


def test_each_defined_table_stands_in_one_document():
    texts = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    defined = tomllib.loads((ROOT / "reports/results/tables.toml").read_text(encoding="utf-8"))
    assert Counter(re.findall(r"^<!-- table ([\w-]+) -->$", texts, re.MULTILINE)) == Counter(dict.fromkeys(defined, 1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It was marked.", ["marked: write flagged"]),
        ("The\nfloor is `floor`.", ["floor: write roofline bound, lower bound"]),
        ("Of two runs, one won.", ["Of two runs, one won."]),
        ("4.2 µs a token", ["µs a token: write per token"]),
        ("```\nmarked\n```\nSwiGLU gate, in place.", []),
    ],
)
def test_a_banned_word_is_found_outside_of_code(text, found):
    assert banned_words(text) == found


def test_a_sentence_of_31_words_is_found_and_one_of_30_is_not():
    assert long_sentences("w " * 30 + "w.") == [("w " * 30 + "w.").strip()]
    assert long_sentences("w " * 29 + "w. Short.") == []


def test_docstrings_and_comments_are_read_and_code_is_not():
    source = (
        '"""A module."""\n# One\n# two.\nmarked = "cut"  # Three [B, T].\n# fmt: skip\n\ndef f():\n    """Four."""\n'
    )
    assert code_text(source) == "A module.\n\nFour.\n\nOne\ntwo.\n\nThree ."
