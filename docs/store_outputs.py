"""Runs the notebooks and stores what they print and draw in them.

  python docs/store_outputs.py [docs/notebooks/first_run.ipynb ...]

in the environment of the pages (`pip install '.[docs]'`). Run it after a change of a
notebook, or of what it shows.
"""

import copy
import pathlib
import sys

from nbclient import NotebookClient
import nbformat

NOTEBOOKS = pathlib.Path(__file__).parent / "notebooks"


def main() -> None:
  """Runs the named notebooks, or all."""
  for path in map(pathlib.Path, sys.argv[1:] or sorted(NOTEBOOKS.glob("*.ipynb"))):
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    facts = copy.deepcopy(notebook["metadata"])
    client = NotebookClient(
      notebook,
      timeout=600,
      record_timing=False,
      coalesce_streams=True,
      resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook["metadata"] = facts  # without the versions of this machine
    nbformat.write(notebook, path)
    print(path, flush=True)


if __name__ == "__main__":
  main()
