"""Embed scripts in an HTML page whose Content-Security-Policy allows only these scripts."""

import base64
import gzip
import hashlib
import re
from functools import cache

from markupsafe import Markup
from plotly.offline import get_plotlyjs

# The call in plotly.js that registers chart types in addition to scatter plots.
_OTHER_CHARTS = re.compile(r"([\w$]+)\.register\(\[(?:[\w$]+\(\),?)+\]\);(?=[\w$]+\.exports=\1\b)")


def packed(text: str) -> Markup:
    """Return the text gzipped and in base64; `load.js` unpacks it."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode())


def script_hash(script: str) -> str:
    """Return a script's hash, such as `sha256-...`, for the Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_source() -> str:
    """Return plotly.js's source with only scatter plots registered: other types delay the first figure."""
    return _OTHER_CHARTS.sub("", get_plotlyjs().replace("\r\n", "\n"))


@cache
def packed_plotly() -> Markup:
    return packed(plotly_source())
