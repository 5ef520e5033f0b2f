"""Where the paper of a method can be read.

It does without Sphinx, so that the tests can ask for every method.
"""

import re

from fedjax_alg import registry

#: Method -> its paper on arXiv, where the registry names a venue.
_ARXIV = {
  "fedavg": "1602.05629",
  "fedrep": "2102.07078",
  "fedbabu": "2106.06042",
  "fedbn": "2102.07623",
  "fedprox": "1812.06127",
  "fedadagrad": "2003.00295",
  "fedyogi": "2003.00295",
  "fedadam": "2003.00295",
  "scaffold": "1910.06378",
  "fedexp": "2301.09604",
  "fedacg": "2201.03172",
  "scaffold_m": "2306.16504",
  "fedsam": "2206.02618",
  "fedlesam": "2405.18890",
  "scaffnew": "2202.09357",
  "fedadmm": "2204.03529",
  "fednova": "2007.07481",
  "feddyn": "2111.04263",
  "per_fedavg": "2002.07948",
  "fedgroup": "2010.06870",
  "fedgrouprox": "2010.06870",
  "ifca": "2006.04088",
  "cfl": "1910.01991",
  "flhc": "2004.11791",
  "pacfl": "2209.10526",
  "feddrift": "2206.00799",
  "fedem": "2108.10252",
  "fedsoft": "2112.06053",
  "afl": "2405.16240",
  "fedzo": "2201.09531",
  "baffle": "2301.12195",
  "losac": "2112.07839",
  "pfedme": "2006.08848",
  "ditto": "2012.04221",
  "fedbuff": "2106.06639",
  "fedmuon": "2509.26337",
  "fed3r": "2406.01116",
  "fedncm": "2306.03937",
  "fedcof": "2412.14326",
  "deepafl": "2603.00579",
  "safle": "2512.03336",
}
_DOI = {
  "ma_fsvrg": "10.1109/TNNLS.2024.3487873",
  "ga_fsvrg": "10.1109/TNNLS.2024.3487873",
}
#: Methods without a paper, and those of which we have found no address that we
#: could check.
WITHOUT = ("composed", "central", "local", "cfsvrg", "clsfsvrg", "pfedzo")


def address(name: str) -> str:
  """Returns the address of a method's paper; "" where there is none."""
  if name in _DOI:
    return f"https://doi.org/{_DOI[name]}"
  match = re.search(r"arXiv:(\d{4}\.\d{5})", registry.ALGORITHMS[name].paper)
  number = match[1] if match else _ARXIV.get(name)
  return f"https://arxiv.org/abs/{number}" if number else ""


def link(name: str) -> str:
  """Returns a method's paper as Markdown, linked where it has an address."""
  paper = registry.ALGORITHMS[name].paper
  target = address(name)
  return f"[{paper}]({target})" if target else paper
