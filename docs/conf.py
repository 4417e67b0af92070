"""How Sphinx builds the documents: `python -m sphinx -W docs docs/_build`. Needs no network."""

from importlib.metadata import version as version_of
from pathlib import Path

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
autodoc_default_options = {
    "members": True,
    # What strategies share among themselves.
    "exclude-members": "due, forget_takes, note_take, older_takes, parts, shares, stands, undo, undo_takes",
}
add_module_names = False
toc_object_entries = False

# Pages that were renamed: the old address leads to the new page.
MOVED = {"neighbours": "comparison", "order": "fairness", "scopes": "processes", "steering": "runtime"}


def write_redirects(app, exception):
    """Write one small page for each old address."""
    if exception is None and app.builder.format == "html":
        for old, new in MOVED.items():
            page = f'<meta http-equiv="refresh" content="0; url={new}.html"><a href="{new}.html">This page has moved.</a>\n'
            (Path(app.outdir) / f"{old}.html").write_text(page, encoding="utf-8")


def setup(app):
    """Called by Sphinx."""
    app.connect("build-finished", write_redirects)
