"""`ttt-bench site`: publish runs as a static site, and serve it."""

import sys
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.errors import UserError
from harness.schema.files import refusing
from harness.schema.reason import counted
from harness.schema.run import Run

_LOOPBACK = "127.0.0.1"


def site(runs: Sequence[Path], output: Path) -> None:
    """Write or update the site of `runs`."""
    from reports.site.build import write_site

    with refusing(output, "written", UserError):
        built = write_site(runs, output, lambda text: print(text, file=sys.stderr, flush=True))
    for note in built.notes:
        print(f"ttt-bench: {note}", file=sys.stderr)
    drawn = f"{built.drawn} drawn, {built.runs - built.drawn} as they were"
    removed = f", {counted(built.removed, 'file')} removed" if built.removed else ""
    print(f"wrote {output / 'index.html'}: {counted(built.runs, 'run')}, {drawn}{removed}")


def serve(folder: Path, port: int) -> None:
    """Serve a site on the loopback address until Ctrl-C."""
    from reports.site.folder import refuse_what_is_no_site

    if Run.exists(folder):
        raise UserError(f"{folder}: is a run; make a site of it: ttt-bench site {folder} -o SITE")
    refuse_what_is_no_site(folder)
    try:
        server = ThreadingHTTPServer((_LOOPBACK, port), partial(_Handler, directory=str(folder)))
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used: {error.strerror}") from None
    with server:
        print(f"http://{_LOOPBACK}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Handler(SimpleHTTPRequestHandler):
    """Serve a site's files, but no folder listings."""

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # the site may be rebuilt while it is served
        super().end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Print no access log."""
