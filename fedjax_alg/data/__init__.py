"""Data sets, features, partitions and the layout of data on the device."""

from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.features import FEATURES, make_features
from fedjax_alg.data.federation import deal
from fedjax_alg.data.federation import federate
from fedjax_alg.data.federation import Federation
from fedjax_alg.data.femnist import emnist_letters
from fedjax_alg.data.femnist import KINDS as FEMNIST_KINDS
from fedjax_alg.data.femnist import load_femnist
from fedjax_alg.data.hold_out import check_hold_out
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.layout import client_data
from fedjax_alg.data.layout import everyone
from fedjax_alg.data.layout import PADDING_ROWS
from fedjax_alg.data.layout import shard_of
from fedjax_alg.data.layout import take_cohort
from fedjax_alg.data.newcomers import check_newcomers
from fedjax_alg.data.newcomers import with_newcomers
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.partition import HeldOut
from fedjax_alg.data.partition import label_histogram
from fedjax_alg.data.partition import make_partition
from fedjax_alg.data.partition import Partition
from fedjax_alg.data.partition import partition_hash
from fedjax_alg.data.partition import PARTITIONS
from fedjax_alg.data.sent140 import load_sent140
from fedjax_alg.data.sent140 import SPECIAL as SPECIAL_TOKENS
from fedjax_alg.data.shift import num_pairs
from fedjax_alg.data.shift import shifted
from fedjax_alg.data.shift import SHIFTS
from fedjax_alg.data.shift import SWAPS
from fedjax_alg.data.sources import load_digits
from fedjax_alg.data.sources import load_idx
from fedjax_alg.data.sources import load_leaf
from fedjax_alg.data.sources import load_npz
from fedjax_alg.data.sources import load_shakespeare
from fedjax_alg.data.sources import load_tfds
from fedjax_alg.data.sources import PREPARABLE
from fedjax_alg.data.sources import prepare_tfds
from fedjax_alg.data.sources import TFDS_NAMES
from fedjax_alg.data.synthetic import synthetic
from fedjax_alg.data.tfds_source import is_tfds

__all__ = [
    "DataError", "DataOptions", "Examples", "FEATURES", "FEMNIST_KINDS",
    "Federation", "HeldOut", "PADDING_ROWS", "PARTITIONS", "PREPARABLE",
    "Partition", "SHIFTS", "SPECIAL_TOKENS", "SWAPS", "TFDS_NAMES",
    "check_hold_out", "check_newcomers", "client_data", "deal",
    "emnist_letters", "everyone", "federate", "from_arrays", "hold_out",
    "is_tfds", "label_histogram", "load_digits", "load_femnist", "load_idx",
    "load_leaf", "load_npz", "load_sent140", "load_shakespeare", "load_tfds",
    "make_features", "make_partition", "num_pairs", "partition_hash",
    "prepare_tfds", "shard_of", "shifted", "synthetic",
    "take_cohort", "with_newcomers",
]
