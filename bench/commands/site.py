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


def serve(folder: Path, port: int) -> None:
    """Serve a site on the loopback address until Ctrl-C."""
    from reports.site.folder import refuse_what_is_no_site

    if Run.exists(folder):
        raise UserError(f"{folder}: is a run; make a site of it: ttt-bench site {folder} -o SITE")
    refuse_what_is_no_site(folder)
    try:
        server = ThreadingHTTPServer((_LOOPBACK, port), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used: {error.strerror}") from None
    with server:
        print(f"http://{_LOOPBACK}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
