"""Data sets, features, partitions and the layout of data on the device."""

from fedjax_alg.data.characters import SPECIAL as SPECIAL_TOKENS
from fedjax_alg.data.client_files import iterate_clients, open_clients, write_clients
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.federation import Federation, deal, federate
from fedjax_alg.data.femnist import emnist_letters
from fedjax_alg.data.label_skew import Classes, Dirichlet, Iid, Shards
from fedjax_alg.data.newcomers import with_newcomers
from fedjax_alg.data.own_partition import OwnPartition
from fedjax_alg.data.partition import Partition, Partitioner, label_histogram
from fedjax_alg.data.partition_file import PartitionFile
from fedjax_alg.data.published import Natural, Powerlaw
from fedjax_alg.data.row_dealing import WriteProgress
from fedjax_alg.data.scikit_learn import load_digits
from fedjax_alg.data.sent140 import load_sent140
from fedjax_alg.data.streamed_rows import StreamedRows
from fedjax_alg.data.tfds_source import PREPARABLE, is_tfds, load_tfds, prepare_tfds

__all__ = [
  "Classes",
  "DataError",
  "Dirichlet",
  "Examples",
  "Federation",
  "Iid",
  "Natural",
  "OwnPartition",
  "PREPARABLE",
  "Partition",
  "PartitionFile",
  "Partitioner",
  "Powerlaw",
  "SPECIAL_TOKENS",
  "Shards",
  "StreamedRows",
  "WriteProgress",
  "deal",
  "emnist_letters",
  "federate",
  "is_tfds",
  "iterate_clients",
  "label_histogram",
  "load_digits",
  "load_sent140",
  "load_tfds",
  "open_clients",
  "prepare_tfds",
  "with_newcomers",
  "write_clients",
]
