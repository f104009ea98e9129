"""Read the templates, styles and scripts next to the modules that use them."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def source(package: str, name: str) -> str:
    """Return the text of the style or script with this file name in the folder of a package."""
    return files(package).joinpath(name).read_text("utf-8")


@cache
def environment(package: str) -> Environment:
    """Return the Jinja environment for the templates in the folder of a package.

    It escapes HTML and raises UndefinedError for unknown names, and ValueError for NaN and infinity in JSON.
    """
    found = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return found
