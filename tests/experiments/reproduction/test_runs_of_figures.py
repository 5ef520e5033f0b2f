"""The runs of every figure are those that were published."""

import pytest

from experiments import publish
from experiments.cli import config
from experiments.reproduction import chosen, figures, suite
from tests.experiments import shown

#: paper -> figure:hash of its runs, of all their settings. The test says the hash of
#: other runs; with them a figure has to be published anew. It takes the place of tests
#: that say the settings of the presets again. An identity has the options that are not
#: at their defaults, so a new option changes no hash.
PUBLISHED = {
  "diversified": (
    "fig1:b907233c fig2:b907233c fig3:b907233c fig4:b907233c fig5:f66bd6db "
    "fig6:f66bd6db fig7:f66bd6db fig8:c0801291 fig9:49be366f fig10:6205580e"
    " readings:0dbbbd8c readings_cifar10:242e5893"
  ),
  "conjugate": (
    "fig2:14592c2b fig3:14592c2b fig4:8aa1a7f9 fig5:8aa1a7f9 "
    "readings:224ba2a3 fig6:e8068a85 fig7:71134e34 fig8:71134e34"
  ),
  "fedgroup": (
    "table1:d25b12fe table1_equal:1ce51179 fig1:d25b12fe table3:6993a472 "
    "synthetic:2d28ed83 table3_mnist:d56fba1b table3_femnist:1957bac3 "
    "fig3:f33cf289 fig4:61351343 eta_g:53796c0e readings:7116a105 "
    "newcomers:8dba2209 shift:174b13dd"
  ),
  "analytic": (
    "fig4:06faf665 fig5:06faf665 fig6:931b6cde table2:0ee00bb6 "
    "dirichlet:117ec11c ablations:18a81a8a afl:0b9cce37"
  ),
  "trust": (
    "niid_bench:18221b2d niid_noise:b4c570f8 fedavg_2nn:810d7918 pfedme:3ce166b3 "
    "ifca_rotated:1b2bf47c feddrift:b6b8a241 tamuna:6d84b552 muon:1ff424e7"
  ),
  "beyond": (
    "hostile:b946c20d bytes:3fe97607 late:d41874ea private:0f9e29e1 board:32410548 "
    "map:408929f8 acceleration:488171df family:2869b8f3 bridge:181715d0 "
    "backbone:fa6bfef4 groups:3e953a7d natural:2b066a27"
  ),
}


@pytest.mark.parametrize("paper", PUBLISHED)
def test_the_runs_of_a_figure_are_those_that_were_published(paper):
  digests = {}
  for name, figure in publish.PAPERS[paper].figures.items():
    cells = shown.cells(paper, name)
    digests[name] = shown.digest(cells, figure.partitions)
    assert {cell.panel for cell in cells} == {
      panel.letter for panel in figure.panels if panel.is_tuned
    }
    for cell in cells:
      assert figure.protocol in cell.config.run.eval_protocols
      assert chosen.describe(cell.choices) != "not declared", cell
  assert digests == dict(word.split(":") for word in PUBLISHED[paper].split())


@pytest.mark.parametrize("paper", ["diversified", "conjugate"])
def test_what_was_tuned_on_mnist_does_not_reach_cifar10(paper):
  # A value of a method's preset goes before that of the data in ``_OF_METHODS``.
  # Normalized blocks, chosen on MNIST, had cost every method three points.
  of_data = config.values_of(f"{paper}/cifar10.flags")
  special = figures.method_presets(paper, "methods_cifar10")
  options = set()
  for name, figure in publish.PAPERS[paper].figures.items():
    for cell in shown.cells(paper, name) if figure.data == "cifar10" else ():
      values = cell.config.values
      if cell.protocol == suite.TUNED and values["algorithm"] in special:
        tuned = of_data | config.values_of(special[values["algorithm"]])
        for option in tuned.keys() & set(figures._OF_METHODS):
          value = values[option]
          same = str(value) == str(tuned[option]) or value == float(tuned[option])
          assert same, (name, cell.name)
          options.add(option)
  assert options == {"l2", "features"}
