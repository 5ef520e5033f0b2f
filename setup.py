"""What setup.cfg cannot say: the page of a package index, and commands left out."""

import configparser
import pathlib
import re

import setuptools
from setuptools.command import build_py

ROOT = pathlib.Path(__file__).parent


def index_page(text: str, base: str) -> str:
  """README.md as a package index can show it.

  Args:
    text: README.md, whose links and pictures are files of the repository.
    base: address under which these files can be read; "" where there is none.

  Returns:
    The page with absolute addresses. Without ``base`` pictures of the
    repository are left out and its files are named, not linked.
  """

  def absolute(match: re.Match[str]) -> str:
    picture, words, target = match.groups()
    if target.startswith(("https://", "#")):
      return match[0]
    if base:
      return f"{picture}[{words}]({base.rstrip('/')}/{target})"
    return "" if picture else words

  return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, text)


settings = configparser.ConfigParser()
settings.read(ROOT / "setup.cfg")


class BuildPy(build_py.build_py):
  """Leaves out the commands that need the repository."""

  def find_package_modules(self, package, package_dir):
    """Lists (package, module, file) of what is installed."""
    left_out = settings["repository"]["commands"].split()
    return [
      module
      for module in super().find_package_modules(package, package_dir)
      if package != "fedjax_alg.experiments" or module[1] not in left_out
    ]


setuptools.setup(
  cmdclass={"build_py": BuildPy},
  long_description=index_page(
    (ROOT / "README.md").read_text("utf-8"), settings["index_page"]["files_url"]
  ),
)
