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
    "fig1:c2023e50 fig2:c2023e50 fig3:c2023e50 fig4:c2023e50 fig5:e045cf39 "
    "fig6:e045cf39 fig7:e045cf39 fig8:24502921 fig9:6f637b1c fig10:b3c17a2d"
    " readings:2c988945 readings_cifar10:e62c9b8a"
  ),
  "conjugate": (
    "fig2:10ad7d97 fig3:10ad7d97 fig4:e4594513 fig5:e4594513 "
    "readings:1f51d45e fig6:b4a88474 fig7:f532c775 fig8:f532c775"
  ),
  "fedgroup": (
    "table1:6f95f3ed table1_equal:9233e172 fig1:6f95f3ed table3:ae2f9492 "
    "synthetic:b99c6d36 table3_mnist:00941eea table3_femnist:7025b0ef "
    "fig3:741543b0 fig4:a6e60b7a eta_g:47612b65 readings:ebc64eda "
    "newcomers:187639aa shift:615d0a20"
  ),
  "analytic": (
    "fig4:d946b083 fig5:d946b083 fig6:40a0ba2b table2:88296557 "
    "dirichlet:a393f06b ablations:0df4276e afl:6211a006"
  ),
  "trust": (
    "niid_bench:29e211f4 niid_noise:4cb02697 fedavg_2nn:80fb77b1 pfedme:c3619495 "
    "ifca_rotated:33795bcd feddrift:d5448fbf tamuna:a48cc96f muon:5f94f3af"
  ),
  "beyond": (
    "hostile:92c7ae0d bytes:0c92c29b late:64ffbbf5 private:03d2bb6f board:afb7b73b "
    "map:e4a0dd5a acceleration:0ea0e596 family:a789307c bridge:91095e33 "
    "groups:38efa160"
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
          same = str(value) == str(tuned[option]) or value == float(tuned[option])
          assert same, (name, cell.name)
          options.add(option)
  assert options == {"l2", "features"}
