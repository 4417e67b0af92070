"""How Sphinx builds the documents: `python -m sphinx -W docs docs/_build`. Needs no network."""

import json
import re
from html import escape
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

project = "aiorate"
author = "the aiorate authors"
copyright = "the aiorate authors"
release = version = version_of("aiorate")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"aiorate {version}"
html_baseurl = "https://aiorate.readthedocs.io/en/latest/"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False  # the licence is in the footer: _templates/page.html
templates_path = ["_templates"]
REPOSITORY = "https://github.com/aiorate/aiorate"
MARK = Path(__file__).with_name("_static").joinpath("github.svg").read_text(encoding="utf-8")
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "aiorate on GitHub", "url": REPOSITORY, "html": MARK, "class": ""}],
}
myst_heading_anchors = 3

# Docstrings write `name` for what is documented here or is plain code.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88  # in longer ones, each parameter has its line

# Parameters that exist to answer mistakes with a message that helps: no call passes them.
NAMED = re.compile(r"(?:, )?\*\*\w+: [\w.]*Never|(?:, )?timeout: None = None")
POSITIONAL = re.compile(r"\*misplaced: [\w.]*(?:Never|object)")
OF_KEYS = {"KeyedLimiter": "Limiter", "KeyedBudget": "Budget"}


def clean_signature(app, what, name, obj, options, signature, returns):
    """Show the parameters that users write."""
    if signature:
        signature = NAMED.sub("", signature)
        signature = re.sub(POSITIONAL.pattern + r"(?:, (?=\*\*)|(?=\)))", "", signature)
        signature = POSITIONAL.sub("*", signature)  # what follows is keyword-only
        signature = re.sub(r"<function (\w+)>", r"\1", signature).replace("(, ", "(")
        signature = re.sub(r"(rate_or_scheduler: [^=,]+) = ''", r"\1", signature)  # without it, a message says what to write
    return signature, returns


def mend_types(app, doctree):
    """Remove overloads that make a type checker report a mistake, which return Never, and say what a key of a keyed limiter has."""
    for signature in list(doctree.findall(addnodes.desc_signature)):
        returns = [node.astext() for node in signature.findall(addnodes.desc_returns)]
        if returns and returns[0].endswith("Never") and len(signature.parent.children) > 2:
            signature.parent.remove(signature)
        held = OF_KEYS.get(signature.get("class"))
        for text in list(signature.findall(nodes.Text)) if held else []:
            if text.astext() == "V":
                text.parent.replace(text, nodes.Text(held))


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
# Sections that have moved from a page that is still there.
MOVED_SECTIONS = {
    "howto": {
        "limit-each-host-or-user-keyedlimiter": "howto/keys",
        "limit-a-bot-per-chat-and-in-total": "howto/bot",
        "interactive-requests-before-batch-jobs": "howto/priorities",
        "limit-rate-and-concurrency": "howto/concurrency",
        "generate-load-for-a-load-test": "howto/load_test",
        "test-code-without-waiting": "howto/test_code",
    },
}
LEAVE = "<script>const page = {sections}[location.hash.slice(1)]; if (page) location.replace(page + '.html');</script>"
REDIRECT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<meta name="description" content="An old address of the documents of aiorate, rate limiting for asyncio: the page has moved.">
<title>{old} has moved - aiorate</title>
<script>
const sections = {sections};
location.replace((sections[location.hash.slice(1)] || "{page}") + ".html");
</script>
<noscript><meta http-equiv="refresh" content="0; url={page}.html"></noscript>
</head>
<body>
<h1>This page has moved</h1>
<p>It is <a href="{page}.html">here</a> now. See also the <a href="index.html">first page</a> and the <a href="{repository}">source</a>.</p>
</body>
</html>
"""


def write_redirects(app, exception):
    """Write one small page for each old address."""
    if exception is None and app.builder.format == "html":
        for old, (page, sections) in MOVED.items():
            text = REDIRECT
            for name, value in {"old": old, "page": page, "sections": json.dumps(sections), "repository": REPOSITORY}.items():
                text = text.replace(f"{{{name}}}", value)
            (Path(app.outdir) / f"{old}.html").write_text(text, encoding="utf-8")


LONGEST = 155  # letters of a description; search engines show about as many


def describe(doctree):
    """The first sentences of a page, for pages whose front matter has no description."""
    text = "aiorate limits rates in asyncio programs: exactly, in order of arrival, safe to cancel."
    if doctree is not None:
        paragraphs = [node.astext() for node in doctree.findall(nodes.paragraph) if not isinstance(node.parent, nodes.entry)]
        text = " ".join(" ".join(paragraphs[:4]).split()) or text
    if len(text) <= LONGEST:
        return text
    sentences = text[: LONGEST + 1].rpartition(". ")[0]
    return f"{sentences}." if len(sentences) > 60 else text[: LONGEST - 1].rpartition(" ")[0] + "…"


def add_metadata(app, pagename, templatename, context, doctree):
    """Add the description and the Open Graph fields that a page lacks."""
    given = re.search(r'<meta content="([^"]*)" name="description"', context.get("metatags", ""))
    description = given[1] if given else escape(describe(doctree))
    tags = "" if given else f'<meta name="description" content="{description}">'
    title = escape(re.sub("<.*?>", "", context.get("title") or project))
    for name, content in {"type": "website", "site_name": project, "title": title, "description": description}.items():
        tags += f'<meta property="og:{name}" content="{content}">'
    if pagename in MOVED_SECTIONS:
        tags += LEAVE.replace("{sections}", json.dumps(MOVED_SECTIONS[pagename]))
    context["metatags"] = context.get("metatags", "") + tags


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", clean_signature)
    app.connect("doctree-read", mend_types)
    app.connect("html-page-context", add_metadata)
    app.connect("build-finished", write_redirects)
