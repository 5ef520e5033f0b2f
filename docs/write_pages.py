"""Writes what is made of the registry, the tests and the published results.

  python docs/write_pages.py

These are parts of pages, each between two lines that no reader sees, and the tables
that ``fa.advise`` reads. If a result, a test or the registry changes, run the command
again: ``tests/docs/test_written.py`` compares.
"""

import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_extensions")]

import written  # noqa: E402

from fedjax_alg.records.summary import write_text  # noqa: E402

if __name__ == "__main__":
  for path, text in written.files().items():
    if not path.is_file() or text != path.read_text("utf-8"):
      write_text(path, text)
      print(path.relative_to(DOCS.parent))
