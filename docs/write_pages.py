"""Writes the parts of pages that are made of the registry, the tests and the results.

  python docs/write_pages.py

A part stands between two lines that no reader sees. If a result, a test or the
registry changes, run the command again: ``tests/docs/test_written.py`` compares.
"""

import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_extensions")]

import written  # noqa: E402

from fedjax_alg.records.summary import write_text  # noqa: E402

if __name__ == "__main__":
  for path, text in written.files().items():
    if text != path.read_text("utf-8"):
      write_text(path, text)
      print(path.relative_to(DOCS.parent))
