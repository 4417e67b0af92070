"""How Sphinx builds the documents: `python -m sphinx -W docs docs/_build`. Needs no network."""

from importlib.metadata import version as version_of

project = "aiorate"
author = "the aiorate authors"
copyright = "the aiorate authors"
release = version = version_of("aiorate-limiter")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "design.md", "contributing.md"]
html_theme = "furo"
html_title = f"aiorate {version}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
myst_heading_anchors = 3

# Docstrings write `name` for what is documented here or is plain code.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
toc_object_entries = False
maximum_signature_line_length = 88  # in longer ones, each parameter has its line
napoleon_numpy_docstring = False
