"""A page: one HTML file that holds all it needs, charts and plotly.js among it, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import autotune
from autotune import whole_file
from autotune.errors import StudyError
from autotune.report import units


def render(
    template: str,
    context: Mapping[str, Any],
    charts: Mapping[str, Mapping[str, Any] | None],
    *,
    package: str = "autotune.report",
) -> str:
    """Return a page.

    Args:
        template: name of a template.
        context: what the template shows; texts are escaped.
        charts: Plotly figures by the id of the element that they fill; None is left out.
        package: whose folder `templates` holds the template; those of this package are at hand too.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("autotune.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    drawn = {name: figure for name, figure in charts.items() if figure is not None}
    return environment.get_template(template).render(
        **context,
        units=units,
        version=autotune.__version__,
        charts=drawn,
        charts_json=_embedded(drawn),
        plotly_js=_plotly_js() if drawn else "",
    )


def write(text: str, path: Path) -> None:
    """Write a page, whole or not at all.

    Raises:
        StudyError: when the file can't be written.
    """
    try:
        whole_file.write(text, path)
    except OSError as error:
        raise StudyError(f"can't write the report {path}: {error}; choose another path") from error


def _breakable(text: str) -> Markup:
    """Return escaped text that may be broken after the dots and underscores of a long key."""
    return Markup(re.sub(r"(?<=\w)[._](?=\w)", r"\g<0><wbr>", str(escape(text))))  # noqa: S704 (escaped)


def _embedded(data: object) -> Markup:
    """Return JSON that is safe inside a script element: no '<' ends it, and figures that JSON lacks are null."""
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _plotly_js() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())  # noqa: S704 (plotly's own source)
