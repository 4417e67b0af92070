"""How Sphinx builds the documents: `python -m sphinx -W docs docs/_build`. Needs no network."""

from importlib.metadata import version as version_of

project = "aiorate"
author = "the aiorate authors"
copyright = "the aiorate authors"
release = version = version_of("aiorate")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"aiorate {version}"
html_show_copyright = False
myst_heading_anchors = 3

# Docstrings write `name` for what is documented here or is plain code.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
add_module_names = False
toc_object_entries = False
