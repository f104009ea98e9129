"""`ttt-bench table`, `numbers`, `report` and `picture`: show a run."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from bench.errors import UserError
from bench.selection import words
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.record import RecordError


def table(run: Path, fmt: str, systems: str | None, columns: str | None) -> None:
    """Print a run's records as text, Markdown, CSV or JSON."""
    from reports import write_table

    write_table(run, fmt, systems=words("--systems", systems, str), columns=words("--columns", columns, str))


def report(run: Path, output: Path | None, systems: str | None) -> None:
    """Write the HTML page of a run."""
    from reports import write_report

    output = output or run / "report.html"
    with refusing(output, "written", UserError):
        write_report(run, output, systems=words("--systems", systems, str))
    print(f"wrote {output}")


def numbers(files: Sequence[Path]) -> None:
    """Write the tables of Markdown files anew from the runs that they name; none is touched where one cannot be."""
    from bench.numbers import with_numbers
    from bench.run_tables import Source
    from harness.schema.run import Run

    source_of = cache(lambda folder: Source.of(Run.open(folder)))

    def named_in(file: Path) -> Callable[[str], Source]:
        return lambda run: source_of((file.parent / run).resolve())

    texts, before = {}, {}
    untouched = "; none of the files is changed" if len(files) > 1 else ""
    for file in files:
        try:
            before[file] = read_regular(file).decode()
            texts[file] = with_numbers(before[file], named_in(file))
        except (UserError, RecordError) as error:
            raise UserError(f"{file}: {error}{untouched}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}{untouched}") from None
    for file, text in texts.items():
        if text == before[file]:
            print(f"unchanged {file}")
            continue
        with refusing(file, "written", UserError):
            write_atomically(file, text)
        print(f"wrote {file}")


def picture(run: Path, output: Path, figures: str, theme: str, width: int, log_y: bool, systems: str | None) -> None:
    """Write a PNG of a run's figures."""
    from reports.picture import write_picture

    if theme not in ("light", "dark"):
        raise UserError(f"--theme {theme}: must be light or dark")
    with refusing(output, "written", UserError):
        write_picture(run, output, figures, theme, width, log_y, words("--systems", systems, str))
    print(f"wrote {output}")
