"""Attack the harness and count what does not hold: python -m tests.attacks [--kills N] [--records N] [--repeats N].

Prints one table and exits with 1 where anything failed. 0 leaves an attack out.
"""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.attacks import fuzz, kills, same

HONEST_RUNS = 20
_HELD = 0.9  # of the intervals of an A/A measurement


@dataclass(frozen=True)
class Line:
    """One attack: how often it was tried, how often it succeeded, and what is to be known of it."""

    attack: str
    count: int
    failures: int
    note: str = ""


def killing(count: int, seed: int) -> Iterator[Line]:
    """Cases lost, cases doubled and processes left, over all kills."""
    found = kills.attack(count, seed)
    hit = ", ".join(f"{number} of a {kind}" for kind, number in sorted(found.hit.items()))
    yield Line("kills: cases lost", found.hit.total(), found.lost, hit)
    yield Line("kills: cases doubled", found.hit.total(), found.doubled, f"{found.runs} runs, {found.resumed} resumed")
    yield Line("kills: processes left", found.hit.total(), found.left)
    yield Line("kills: runs broken", found.runs, len(found.broken), "; ".join(sorted(set(found.broken))[:3]))


def fuzzing(count: int, seed: int) -> Iterator[Line]:
    """Unexpected exceptions on `count` records, and on a third as many record files and run.json."""
    for attack, test, share in (
        ("changed records", fuzz.fuzz_records, 1.0),
        ("changed record files", fuzz.fuzz_record_files, 1 / 3),
        ("changed run.json", fuzz.fuzz_runs, 1 / 3),
    ):
        examples = max(1, round(count * share))
        try:
            yield Line(attack, test(examples, seed), 0)
        except Exception as error:
            print(f"{attack}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            yield Line(attack, examples, 1, f"{type(error).__name__}: {error}"[:200])


def mistaken() -> Iterator[Line]:
    """Mistakes that are not caught by name, and honest adapters that are accused."""
    import torch

    from tests.attacks import mistakes

    torch.set_num_threads(1)
    with contextlib.redirect_stderr(io.StringIO()):  # the tracebacks of adapters that fail
        missed = list(mistakes.uncaught())
        accused = [
            record.reason
            for case in mistakes.HONEST_CASES
            for record in (mistakes.record_of(mistakes.Honest, case) for _ in range(HONEST_RUNS))
            if record.status != "ok"
        ]
    yield Line("mistakes", len(mistakes.MISTAKES), len(missed), "; ".join(missed))
    honest = HONEST_RUNS * len(mistakes.HONEST_CASES)
    yield Line("honest adapters accused", honest, len(accused), "; ".join(accused[:2]))


def agreeing(measurements: int) -> Iterator[Line]:
    """Intervals that do not hold the grand median; one in ten may."""
    found = same.attack(measurements)
    missed = found.measurements - found.shown
    note = f"{found.shown} of {measurements} hold the grand median; {found.within} of one process each"
    yield Line("A/A: intervals", measurements, missed if found.shown < _HELD * measurements else 0, note)


def table(lines: list[Line]) -> str:
    """The lines below each other, in columns."""
    rows = [("attack", "count", "failures", ""), *((x.attack, str(x.count), str(x.failures), x.note) for x in lines)]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{attack:<{wide[0]}}  {count:>{wide[1]}}  {failures:>{wide[2]}}  {note}".rstrip()
        for attack, count, failures, note in rows
    )


def main() -> int:
    """Run the attacks that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description="Attack the harness; print a table.")
    parser.add_argument("--kills", type=int, default=1000, help="processes to kill (default 1000)")
    parser.add_argument("--records", type=int, default=100_000, help="records to change (default 100000)")
    parser.add_argument("--repeats", type=int, default=20, help="measurements of the same work (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of what is random (default 0)")
    asked = parser.parse_args()
    lines: list[Line] = []
    attacks: list[tuple[int, Callable[[], Iterator[Line]]]] = [
        (1, mistaken),
        (asked.repeats, lambda: agreeing(asked.repeats)),
        (asked.records, lambda: fuzzing(asked.records, asked.seed)),
        (asked.kills, lambda: killing(asked.kills, asked.seed)),
    ]
    start = time.monotonic()
    for wanted, attack in attacks:
        for line in attack() if wanted else ():
            print(f"{time.monotonic() - start:.0f} s: {line.attack}, {line.failures} of {line.count}", file=sys.stderr)
            lines.append(line)
    print(table(lines))
    failures = sum(line.failures for line in lines)
    print(f"{failures or 'nothing'} failed, in {time.monotonic() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
