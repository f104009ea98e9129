"""How does text become a part of a page that runs no script but its own?"""

import base64
import gzip
import hashlib
import json
from functools import cache
from typing import Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs


def embedded_json(value: Any) -> Markup:
    """JSON for inside a script element: no text in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def packed(text: str) -> Markup:
    """Text compressed and in base 85, which takes a quarter more than its bytes; load.js unpacks it.

    The signs that mean something in HTML are replaced by others: , for <, . for > and : for &.
    """
    data = base64.b85encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
    return Markup(data.translate(str.maketrans("<>&", ",.:")))


def script_hash(script: str) -> str:
    """What the page's Content-Security-Policy calls this script by; any other script does not run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_source() -> str:
    """The script that draws."""
    return get_plotlyjs().replace("\r\n", "\n")


@cache
def packed_plotly() -> Markup:
    """The same, packed once for all pages of a process."""
    return packed(plotly_source())
