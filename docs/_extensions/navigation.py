"""The navigation of every page, made without copies of all tables of contents.

Sphinx makes the tree beside a page by copying the headings of all pages, and
of the functions of all modules, for every page again: most of the time of a build.
Here the tree has the titles only, and the pages of modules and of public names where
the page is one of them.
"""

import html

from sphinx import addnodes

#: Pages with many others below, which are shown only beside these.
FOLDED = ("_modules_of/modules", "api")


def entries_of(env):
  """Yields (caption, pages) of every tree of contents of the first page."""
  for tree in env.master_doctree.findall(addnodes.toctree):
    yield tree.get("caption"), [page for _, page in tree["entries"]]


def pages_below(env, page):
  """The pages in the trees of contents of a page, in their order."""
  return env.toctree_includes.get(page, [])


def ancestors(env, page):
  """The pages above a page, and itself."""
  above = {}
  for parent, pages in env.toctree_includes.items():
    for child in pages:
      above.setdefault(child, parent)
  path = []
  while page is not None and page not in path:
    path.append(page)
    page = above.get(page)
  return path


def tree(env, builder, current):
  """The HTML of the navigation beside a page, as Sphinx's ``toctree()`` writes it."""
  path = ancestors(env, current)
  lines = []

  def add_list(pages, level):
    lines.append(
      "<ul>" if level > 1 or current not in pages else '<ul class="current">'
    )
    for page in pages:
      if page not in env.titles:  # the page is excluded
        continue
      words = f"toctree-l{level}" + (" current" if page in path else "")
      address = builder.get_relative_uri(current, page) or "#"
      title = html.escape(env.titles[page].astext())
      lines.append(
        f'<li class="{words}"><a class="reference internal" '
        f'href="{html.escape(address)}">{title}</a>'
      )
      below = pages_below(env, page)
      if below and (page not in FOLDED or page in path):
        add_list(below, level + 1)
      lines.append("</li>")
    lines.append("</ul>")

  for caption, pages in entries_of(env):
    if caption:
      lines.append(
        '<p class="caption" role="heading"><span class="caption-text">'
        f"{html.escape(caption)}</span></p>"
      )
    add_list(pages, 1)
  return "\n".join(lines)


def _replace(app, pagename, templatename, context, doctree):
  del templatename, doctree
  if "toctree" in context:
    context["toctree"] = lambda **options: tree(app.env, app.builder, pagename)


def setup(app):
  app.connect("html-page-context", _replace, priority=400)  # before the theme reads it
  return {"parallel_read_safe": True, "parallel_write_safe": True}
