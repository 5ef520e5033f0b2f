"""The page of a package index, made of README.md; all else is in setup.cfg."""

import configparser
import pathlib
import re

import setuptools

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
setuptools.setup(
  long_description=index_page(
    (ROOT / "README.md").read_text("utf-8"), settings["index_page"]["files_url"]
  )
)
