"""What is a commit called: in a table, on a page, in a sentence?"""

import re
from collections.abc import Mapping
from typing import Any

from harness.measure.environment import DIRTY


def commit_said(environment: Mapping[str, Any]) -> str:
    """The commit of a record's environment, with DIRTY where there were uncommitted changes; "" for none."""
    commit = environment.get("commit")
    return f"{commit}{DIRTY}" if commit and environment.get("dirty") else str(commit or "")


def short_commit(commit: str, digits: int = 10) -> str:
    """A commit's first digits, and whether there were uncommitted changes; other texts as they are."""
    name, mark = commit.removesuffix(DIRTY), DIRTY if commit.endswith(DIRTY) else ""
    return (name[:digits] if re.fullmatch(r"[0-9a-f]{11,}", name) else name) + mark


def commit_words(commit: str) -> str:
    """`short_commit` in the words of a sentence."""
    short = short_commit(commit)
    return f"{short.removesuffix(DIRTY)} with uncommitted changes" if short.endswith(DIRTY) else short
