"""Data sets, features, partitions, and their layout on the device."""

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.features import FEATURES, make_features
from fedjax_alg.data.hold_out import check_hold_out
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.layout import build
from fedjax_alg.data.layout import client_data
from fedjax_alg.data.layout import everyone
from fedjax_alg.data.layout import FederatedData
from fedjax_alg.data.layout import PADDING_ROWS
from fedjax_alg.data.layout import shard_of
from fedjax_alg.data.layout import take_cohort
from fedjax_alg.data.partition import HeldOut
from fedjax_alg.data.partition import label_histogram
from fedjax_alg.data.partition import make_partition
from fedjax_alg.data.partition import Partition
from fedjax_alg.data.partition import partition_hash
from fedjax_alg.data.partition import PARTITIONS
from fedjax_alg.data.sources import load_digits
from fedjax_alg.data.sources import load_leaf
from fedjax_alg.data.sources import load_npz
from fedjax_alg.data.sources import load_tfds
from fedjax_alg.data.sources import prepare_tfds
from fedjax_alg.data.sources import TFDS_NAMES
from fedjax_alg.data.synthetic import synthetic

__all__ = [
    "DataError", "Examples", "FEATURES", "FederatedData", "HeldOut",
    "PADDING_ROWS", "PARTITIONS", "Partition", "TFDS_NAMES", "build",
    "check_hold_out", "client_data", "everyone", "hold_out",
    "label_histogram", "load_digits", "load_leaf", "load_npz", "load_tfds",
    "make_features", "make_partition", "partition_hash", "prepare_tfds",
    "shard_of", "synthetic", "take_cohort",
]
