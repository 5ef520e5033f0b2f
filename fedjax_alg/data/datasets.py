"""The data sets, which are parts: ``synthetic:0.5,1`` is ``Synthetic(0.5, 1)``.

A plain name is a part without fields, or names a data set of TFDS. To add one, write
its file, with its loader and its part, and add the part to ``Choice``.
"""

from fedjax_alg.data.boundaries import Circle2, Sea4, Sine2
from fedjax_alg.data.client_files import ClientFiles
from fedjax_alg.data.femnist import Femnist
from fedjax_alg.data.idx import Idx
from fedjax_alg.data.leaf import Leaf
from fedjax_alg.data.npz_source import Npz
from fedjax_alg.data.scikit_learn import Diabetes, Digits
from fedjax_alg.data.sent140 import Sent140
from fedjax_alg.data.shakespeare import Shakespeare
from fedjax_alg.data.synthetic import Synthetic
from fedjax_alg.data.tfds_source import PreparedDataSet, Tfds
from fedjax_alg.data.watch import Watch
from fedjax_alg.part import forms, of_type, parts_of

#: The data sets.
Choice = (
  Digits
  | Diabetes
  | Watch
  | Synthetic
  | Sine2
  | Circle2
  | Sea4
  | Tfds
  | Femnist
  | Sent140
  | Shakespeare
  | Idx
  | Npz
  | Leaf
  | ClientFiles
)
#: How they are written.
DATASETS = tuple(forms(Choice))


def data_set(text: str) -> Choice:
  """The data set of a name.

  Raises:
    OptionError: there is none.
  """
  part: Choice = of_type("dataset", text, Choice)
  return part


def names_of(**features: object) -> list[str]:
  """The names of the data sets with such class attributes, for messages.

  Args:
    **features: attribute of ``DataSet`` -> its value.
  """
  return [
    name
    for part in parts_of(Choice)
    if all(getattr(part, key) == value for key, value in features.items())
    for name in (*part.BARE, part.WORD)
  ]


def prepared(name: str) -> PreparedDataSet:
  """The data set that ``experiments.prepare`` calls by a name.

  Args:
    name: a name of TFDS, or one of ``tfds_source.PREPARABLE``.
  """
  for part in parts_of(Choice):
    if issubclass(part, PreparedDataSet) and part.PREPARED_AS == name:
      return part()
  return Tfds(name)
