"""Small TFDS data sets, written as TFDS writes them but without TensorFlow."""

from collections.abc import Iterable, Mapping
import io
import json
import pathlib

from array_record.python import array_record_module
import numpy as np
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

_CLASSES = "tensorflow_datasets.core.features."
TEXT = {"pythonClassName": _CLASSES + "text_feature.Text", "text": {}}
INT32 = {
  "pythonClassName": _CLASSES + "tensor_feature.Tensor",
  "tensor": {"shape": {}, "dtype": "int32", "encoding": "none"},
}
LABEL = {
  "pythonClassName": _CLASSES + "class_label_feature.ClassLabel",
  "classLabel": {"numClasses": "62"},
}


def image_of(*shape: int) -> dict:
  """The entry of images of a shape; -1 is an axis of any length."""
  return {
    "pythonClassName": _CLASSES + "image_feature.Image",
    "image": {"dtype": "uint8", "shape": {"dimensions": list(map(str, shape))}},
  }


IMAGE = image_of(28, 28, 1)


def write(
  directory: pathlib.Path,
  name: str,
  features: Mapping[str, dict],
  rows: Iterable[Mapping[str, int | bytes]],
  **other_splits: Iterable[Mapping[str, int | bytes]],
) -> None:
  """Writes the splits of a prepared version.

  Args:
    directory: of the version, ``.../name[/config]/1.0.0``; made here.
    name: of the data set.
    features: name -> entry of features.json.
    rows: name -> value, of the split train.
    **other_splits: the rows of other splits.
  """
  directory.mkdir(parents=True)
  counts = {}
  for split, split_rows in ({"train": rows} | other_splits).items():
    path = directory / f"{name}-{split}.array_record-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    counts[split] = 0
    for row in split_rows:
      example = tf_example_pb2.Example(
        features=tf_feature_pb2.Features(
          feature={key: _feature(value) for key, value in row.items()}
        )
      )
      writer.write(example.SerializeToString())
      counts[split] += 1
    writer.close()
  (directory / "features.json").write_text(
    json.dumps(
      {
        "pythonClassName": _CLASSES + "features_dict.FeaturesDict",
        "featuresDict": {"features": features},
      }
    )
  )
  (directory / "dataset_info.json").write_text(
    json.dumps(
      {
        "fileFormat": "array_record",
        "name": name,
        "version": directory.name,
        "splits": [
          {
            "name": split,
            "numBytes": "1",
            "shardLengths": [str(count)],
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
          }
          for split, count in counts.items()
        ],
      }
    )
  )


def png(image: np.ndarray) -> bytes:
  """A grey image [H, W] uint8, as TFDS stores it."""
  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


def _feature(value: int | bytes) -> tf_feature_pb2.Feature:
  if isinstance(value, bytes):
    return tf_feature_pb2.Feature(bytes_list=tf_feature_pb2.BytesList(value=[value]))
  return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=[value]))
