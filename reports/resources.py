"""Read the templates, styles and scripts next to the modules that use them."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def source(package: str, name: str) -> str:
    """Return the text of the style or script with this file name in the folder of a package."""
    return files(package).joinpath(name).read_text("utf-8")


def environment(package: str, tidy: bool = False) -> Environment:
    """Return a Jinja environment for the templates in the folder of a package.

    It escapes HTML and raises UndefinedError for unknown names, and ValueError for infinite numbers in JSON.
    tidy: template statements leave no empty lines.
    """
    found = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=tidy,
        lstrip_blocks=tidy,
    )
    found.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return found
