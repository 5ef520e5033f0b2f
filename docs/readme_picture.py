"""Makes docs/images/readme.png of the comparisons of README's example.

python docs/readme_picture.py
"""

import pathlib
import re

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

ROOT = pathlib.Path(__file__).parents[1]
#: Variable of the example -> title of its curves.
PANELS = {"same": "client_lr=0.3 for both", "tuned": "tuned on held-out clients"}


def draw(names):
  """Draws the comparisons of the example.

  Args:
    names: the variables of the example.

  Returns:
    The figure.
  """
  figure, axes = plt.subplots(
    1, len(PANELS), figsize=(8, 2.9), sharey=True, layout="constrained"
  )
  for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
    names[name].plot(axis, x_axis="bytes")
    axis.set(title=title, xlabel="megabytes sent", ylabel="", ylim=(0.5, 1.0))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:g}"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}"))
  axes[0].set_ylabel("accuracy, %")
  axes[0].legend(title="mean of 10 partitions,\n95 % interval", loc="lower right")
  axes[1].get_legend().remove()
  return figure


def main():
  """Runs the example and draws it."""
  text = (ROOT / "README.md").read_text("utf-8")
  names = {"__name__": "readme"}
  exec(re.findall(r"```python\n(.*?)```", text, re.S)[0], names)
  draw(names).savefig(ROOT / "docs" / "images" / "readme.png", dpi=110)


if __name__ == "__main__":
  main()
