"""How Sphinx builds the documents: `python -m sphinx -W docs docs/_build`. Needs no network."""

import json
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

# Pages that were renamed or split: old address, new page, and the pages to which single sections have moved.
MOVED = {
    "neighbours": ("comparison", {}),
    "order": ("fairness", {}),
    "scopes": ("processes", {}),
    "steering": ("runtime", {}),
    "howto_apis": (
        "howto",
        {
            "call-an-api-that-answers-429-too-many-requests": "howto/call_an_api",
            "github-requests-points-content-and-concurrency": "howto/github",
            "shopify-the-cost-is-known-after-the-call": "howto/shopify",
            "crawl-websites": "howto/crawl",
            "10-000-addresses-in-order-with-a-progress-bar": "howto/many_addresses",
            "limit-bytes-per-second": "howto/bytes",
            "a-daily-quota-that-survives-restarts": "howto/daily_quota",
        },
    ),
    "howto_llm": (
        "howto/openai_anthropic",
        {
            "an-llm-gateway-user-team-and-organisation": "howto/llm_gateway",
            "several-gateways-through-redis": "howto/llm_gateway",
            "langchain-llamaindex-pydantic-ai": "howto/langchain",
        },
    ),
    "howto_servers": ("howto/fastapi", {"several-workers-one-limit-standard-headers": "howto/fastapi_workers"}),
    "howto_sync": (
        "howto/threads",
        {
            "requests": "howto/requests",
            "flask": "howto/flask",
            "django": "howto/django",
            "several-processes-gunicorn-uwsgi-celery": "howto/celery",
        },
    ),
}
REDIRECT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Moved</title>
<script>
const sections = {sections};
location.replace((sections[location.hash.slice(1)] || "{page}") + ".html");
</script>
<noscript><meta http-equiv="refresh" content="0; url={page}.html"></noscript>
<p><a href="{page}.html">This page has moved.</a></p>
</html>
"""


def write_redirects(app, exception):
    """Write one small page for each old address."""
    if exception is None and app.builder.format == "html":
        for old, (page, sections) in MOVED.items():
            text = REDIRECT.replace("{page}", page).replace("{sections}", json.dumps(sections))
            (Path(app.outdir) / f"{old}.html").write_text(text, encoding="utf-8")


def setup(app):
    """Called by Sphinx."""
    app.connect("build-finished", write_redirects)
