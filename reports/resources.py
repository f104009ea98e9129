"""Templates, styles and scripts, which lie next to the modules that use them."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def source(package: str, name: str) -> str:
    """Return the text of a style or script of a package."""
    return files(package).joinpath(name).read_text("utf-8")


def environment(package: str, tidy: bool = False) -> Environment:
    """Return Jinja for the templates of a package; it escapes text and raises UndefinedError for unknown names.

    tidy: remove lines that hold only a statement.
    """
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=tidy,
        lstrip_blocks=tidy,
    )
