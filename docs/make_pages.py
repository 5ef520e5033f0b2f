"""Writes the generated parts of the pages, which can be read without a build.

The tables that ``fa.advise`` reads are written, too, and the stub of the package.

  python docs/make_pages.py           writes them
  python docs/make_pages.py --check   names the pages whose parts are old, and fails

docs/_extensions/registry_pages.py makes the parts, choosing.py the tables, stub.py
what editors and type checkers know of the package.
"""

import os
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_extensions")]

import choosing  # noqa: E402  pylint: disable=wrong-import-position
import registry_pages  # noqa: E402  pylint: disable=wrong-import-position
import stub  # noqa: E402  pylint: disable=wrong-import-position

from fedjax_alg.runs import advise  # noqa: E402  pylint: disable=wrong-import-position

COMMAND = "python docs/make_pages.py"


def changed_pages():
  """Yields (path, text) of what is generated and not up to date."""
  for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
    text = path.read_text("utf-8")
    page = os.path.relpath(path.with_suffix(""), DOCS)
    new = registry_pages.with_generated(text, page.replace(os.sep, "/"))
    if new != text:
      yield path, new
  for path, make in (
    (advise.PANELS, choosing.panels_csv),
    (advise.GAINS, choosing.gains_csv),
    (stub.STUB, stub.package_stub),
  ):
    if path.read_text("utf-8") != (new := make()):
      yield path, new


def main():
  """Writes the pages, or checks them; returns 1 if a checked page is old."""
  changed = list(changed_pages())
  if "--check" in sys.argv[1:]:
    for path, _ in changed:
      print(f"{path.relative_to(DOCS.parent)} is old: {COMMAND}", file=sys.stderr)
    return int(bool(changed))
  for path, text in changed:
    path.write_text(text, "utf-8", newline="\n")
    print(path.relative_to(DOCS.parent))
  return 0


if __name__ == "__main__":
  sys.exit(main())
