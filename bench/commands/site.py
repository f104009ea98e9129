"""`ttt-bench site`: publish runs as a static site."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.errors import UserError
from harness.schema.files import refusing
from harness.schema.reason import counted


def site(runs: Sequence[Path], output: Path) -> None:
    """Write the static site of the run folders `runs` into `output`, or update the site there."""
    from reports.site.build import write_site

    with refusing(output, "written", UserError):
        removed = write_site(runs, output, lambda text: print(text, file=sys.stderr, flush=True))
    others = f", {counted(removed, 'file')} of others removed" if removed else ""
    print(f"wrote {output / 'index.html'}: {counted(len(runs), 'run')}{others}")
