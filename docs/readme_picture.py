"""Makes docs/images/readme.png of the runs of README's example.

python docs/readme_picture.py
"""

import pathlib
import re

import matplotlib.pyplot as plt
import numpy as np

from fedjax_alg import metrics, registry
from fedjax_alg.runs import styles

ROOT = pathlib.Path(__file__).parents[1]


def main():
  """Runs the example and draws accuracy over rounds and over bytes."""
  text = (ROOT / "README.md").read_text("utf-8")
  names = {"__name__": "readme"}
  exec(re.findall(r"```python\n(.*?)```", text, re.S)[0], names)
  figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), sharey=True, layout="constrained")
  for name, result in names["runs"].items():
    label = registry.ALGORITHMS[name].label
    style = styles.line_styles([label])[label].matplotlib()
    values = 100 * result.metrics["global"]["accuracy"]
    mean, half = values.mean(0), metrics.half_width_95(values)
    round_bytes = sum(result.history[f"bytes_{way}"] for way in ("up", "down"))
    total = (
      names["setting"]["cohort_size"]
      * np.cumsum(round_bytes, 1).mean(0)[result.rounds - 1]
      / 1e6
    )
    for axis, x in zip(axes, (result.rounds, total)):
      axis.plot(x, mean, label=label, markersize=4, markevery=4, **style)
      axis.fill_between(
        x,
        np.maximum(mean - half, 0),
        np.minimum(mean + half, 100),
        color=style["color"],
        alpha=0.2,
        linewidth=0,
      )
  for axis, label in zip(axes, ("rounds", "megabytes sent")):
    axis.set(xlabel=label, ylim=(60, 100))
    axis.grid(alpha=0.3)
  axes[0].set_ylabel("accuracy, %")
  axes[0].legend(title="mean of 5 seeds,\n95 % interval", loc="lower right")
  figure.savefig(ROOT / "docs" / "images" / "readme.png", dpi=110)


if __name__ == "__main__":
  main()
