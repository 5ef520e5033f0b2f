"""Finds links of the built pages that lead nowhere.

  python docs/check_links.py [docs/_build/html]

Links within the site alone: to pages, files and anchors.
"""

import functools
from html import parser
import pathlib
import sys
from urllib import parse

DEFAULT = pathlib.Path(__file__).parent / "_build" / "html"
#: Pages of source code, whose links are made together with their anchors.
SKIPPED = ("_modules", "genindex", "py-modindex", "search")


class _Page(parser.HTMLParser):
  """The links and anchors of a page."""

  def __init__(self, text):
    super().__init__()
    self.links, self.anchors = set(), set()
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    del tag
    for name, value in attrs:
      if name in ("id", "name") and value:
        self.anchors.add(value)
      elif name in ("href", "src") and value:
        self.links.add(value)


@functools.cache
def _read(path):
  return _Page(path.read_text("utf-8"))


def dead(root):
  """Yields (page, link) for every link to what is not there."""
  for page in sorted(root.rglob("*.html")):
    if page.relative_to(root).as_posix().startswith(SKIPPED):
      continue
    for link in sorted(_read(page).links):
      parts = parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        continue
      target = (
        page.parent / parse.unquote(parts.path) if parts.path else page
      ).resolve()
      if (
        target.is_dir()
        or not target.exists()
        or (
          parts.fragment
          and target.suffix == ".html"
          and parse.unquote(parts.fragment) not in _read(target).anchors
        )
      ):
        yield page.relative_to(root), link


def main():
  root = pathlib.Path(*sys.argv[1:2] or (DEFAULT,)).resolve()
  dead_links = list(dead(root))
  for page, link in dead_links:
    print(f"{page}: dead link {link}", file=sys.stderr)
  return int(bool(dead_links))


if __name__ == "__main__":
  sys.exit(main())
