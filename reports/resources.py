"""Read the templates, styles and scripts next to the modules that use them; paths are relative to `reports`."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def source(path: str) -> str:
    """Return the text of a style or script, such as `page/style.css`."""
    return files("reports").joinpath(path).read_text("utf-8")


# Escapes HTML; raises UndefinedError for unknown names, and ValueError for NaN and infinity in JSON.
TEMPLATES = Environment(
    loader=PackageLoader("reports", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
