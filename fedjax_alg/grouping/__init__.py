"""Grouping clients according to their trained models or updates."""

from fedjax_alg.grouping.hierarchy import LINKAGES, Hierarchy, agglomerate
from fedjax_alg.grouping.kmeans import (
  Groups,
  farthest_first,
  kmeans,
  lloyd,
  lloyd_by_silhouette,
  plus_plus,
)
from fedjax_alg.grouping.nearest import closest_direction, nearest_centre
from fedjax_alg.grouping.projection import Projection, lift, project, project_further
from fedjax_alg.grouping.silhouette import (
  COUNTS,
  choose_number,
  cluster,
  counting_flops,
  silhouette,
)
from fedjax_alg.grouping.similarity import (
  METRICS,
  ROUNDING,
  cosine,
  distances,
  edc,
  edc_points,
  gram,
  madc,
  rounding,
)
from fedjax_alg.grouping.subspaces import (
  ANGLES,
  angle_rounding,
  angles,
  leading_vectors,
  orthonormal,
)

__all__ = [
  "ANGLES",
  "COUNTS",
  "Groups",
  "Hierarchy",
  "LINKAGES",
  "METRICS",
  "ROUNDING",
  "Projection",
  "agglomerate",
  "angle_rounding",
  "angles",
  "choose_number",
  "cluster",
  "closest_direction",
  "cosine",
  "counting_flops",
  "distances",
  "edc",
  "edc_points",
  "farthest_first",
  "gram",
  "kmeans",
  "leading_vectors",
  "lift",
  "lloyd",
  "lloyd_by_silhouette",
  "madc",
  "nearest_centre",
  "orthonormal",
  "project_further",
  "plus_plus",
  "project",
  "rounding",
  "silhouette",
]
