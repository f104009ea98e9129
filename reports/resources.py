"""The templates, styles and scripts that lie beside the modules which draw with them."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def source(package: str, name: str) -> str:
    """The text of a style or script in the folder of a package."""
    return files(package).joinpath(name).read_text("utf-8")


def environment(package: str, tidy: bool = False) -> Environment:
    """Jinja for the templates in the folder of a package: text is escaped, an unknown name is an error.

    tidy: without the lines that held a statement alone.
    """
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=tidy,
        lstrip_blocks=tidy,
    )
