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
    "fig1:a610b134 fig2:a610b134 fig3:a610b134 fig4:a610b134 fig5:dd1a1541 "
    "fig6:dd1a1541 fig7:dd1a1541 fig8:7332d3de fig9:cd7a50f4 fig10:b8389d10"
    " readings:a7ed14c2 readings_cifar10:1f6e189a"
  ),
  "conjugate": (
    "fig2:fd854224 fig3:fd854224 fig4:1af5f50b fig5:1af5f50b "
    "readings:63dedaa1 fig6:b6efe20b fig7:bd4d7792 fig8:bd4d7792"
  ),
  "fedgroup": (
    "table1:f1fd0de4 table1_equal:b9aeff8b fig1:f1fd0de4 table3:5da415b8 "
    "synthetic:b99c6d36 table3_mnist:00941eea table3_femnist:7025b0ef "
    "fig3:741543b0 fig4:70634cb3 eta_g:73f398eb readings:ebc64eda "
    "newcomers:187639aa shift:615d0a20"
  ),
  "analytic": (
    "fig4:dc0279de fig5:dc0279de fig6:109d707a table2:285c3ca2 "
    "dirichlet:60fb2628 ablations:03c481ee afl:82ac40fb"
  ),
  "trust": (
    "niid_bench:ad8e3836 niid_noise:3ae0462d fedavg_2nn:fc3a39ee pfedme:1c2d3fe5 "
    "ifca_rotated:ea2d65af feddrift:d5448fbf tamuna:dc82a981 muon:ca0777ed"
  ),
  "beyond": (
    "hostile:50151731 bytes:7e77bf62 late:64ffbbf5 private:fcc3dfa0 board:dd377278 "
    "map:ec276083 acceleration:af832bff family:ce7ed208 bridge:d3c12a39 "
    "groups:49f5067a"
  ),
}


@pytest.mark.parametrize("paper", PUBLISHED)
def test_the_runs_of_a_figure_are_those_that_were_published(paper):
  digests = {}
  for name, figure in publish.PAPERS[paper].figures.items():
    cells = shown.cells(paper, name)
    digests[name] = shown.digest(cells, figure.partitions)
    assert {cell.panel for cell in cells} == {p.letter for p in figure.panels}
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
          assert value == type(value)(tuned[option]), (name, cell.name)
          options.add(option)
  assert options == {"diversified": {"l2"}, "conjugate": {"l2", "hog_norm"}}[paper]
