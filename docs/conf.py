"""Settings of Sphinx for the site, which `docs/build.py` builds."""

import importlib.metadata
import re
from collections.abc import Callable

from docutils.nodes import Element, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "GRPO"
version = importlib.metadata.version("grpo-utils")
html_title = f"grpo-utils {version}"
root_doc = "index"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.githubpages", "sphinx.ext.napoleon"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # papermill has run them
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars
nb_ipywidgets_js = {}  # from a CDN; what widgets show has a static twin
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

default_role = "code"  # docstrings are Markdown
autodoc_member_order = "bysource"
autodoc_mock_imports = ["unsloth", "vllm"]
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 80


html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_favicon = "icon.svg"
html_copy_source = False
html_math_renderer = "mathml"  # the browser's own: no script, no fonts


def as_rst(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Turns what docstrings have of Markdown that is not reStructuredText into it: examples, lists and tables."""
    text = "\n".join(lines) + "\n"
    for markdown, rst in (
        (r"^Example:\n```python\n", ".. rubric:: Example\n\n"),
        (r"^```\w*\n", "\n"),
        (r"^(?![-\s]).+\n(?=- )", r"\g<0>\n"),  # a list begins after a blank line
        (r"(?:^\|.*\n)+", _table),
    ):
        text = re.sub(markdown, rst, text, flags=re.MULTILINE)
    lines[:] = text.splitlines()


def _table(match: re.Match[str]) -> str:
    head, _, *rows = (line.strip("| ") for line in match.group().splitlines())
    body = "".join(f"   {row}\n" for row in (head, *rows))
    return f".. csv-table::\n   :delim: |\n   :header-rows: 1\n\n{body}\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx: formulas become MathML, docstrings reStructuredText."""

    def math(tag: str, display: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def visit(translator: HTML5Translator, node: Element) -> None:
            formula = convert(node.astext(), display=display)
            translator.body.append(f'<{tag} class="formula">{formula}</{tag}>')
            raise SkipNode  # the formula's text, which is TeX

        return visit, lambda translator, node: None

    inline, block = math("span", "inline"), math("div", "block")
    app.add_html_math_renderer("mathml", inline_renderers=inline, block_renderers=block)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
