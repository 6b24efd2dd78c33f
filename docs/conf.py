"""How Sphinx builds the documentation: `sphinx-build -W docs docs/_build`.

Nothing is fetched, neither while building nor by the pages: formulas are MathML, notebooks come with their outputs,
tables of variables and options are read from the package itself, and figures are drawn from results in the repository.
"""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "resprobe"
author = "the resprobe developers"
copyright = author
version = release = installed("resprobe")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "studies",
    "commands",
    "fields",
    "figures",
    "functions",
]
exclude_patterns = ["_build", "_figures", "data", "jupyter_execute"]
templates_path: list[str] = []

html_theme = "furo"
html_title = "resprobe"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["figures.js"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
highlight_language = "none"

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_render_markdown_format = "myst"

# single backticks in docstrings are code
default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 60
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
