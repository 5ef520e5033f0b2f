"""Grouping clients according to their trained models or updates."""

from fedjax_alg.grouping.hierarchy import agglomerate
from fedjax_alg.grouping.hierarchy import Hierarchy
from fedjax_alg.grouping.hierarchy import LINKAGES
from fedjax_alg.grouping.kmeans import farthest_first
from fedjax_alg.grouping.kmeans import Groups
from fedjax_alg.grouping.kmeans import kmeans
from fedjax_alg.grouping.kmeans import lloyd
from fedjax_alg.grouping.kmeans import plus_plus
from fedjax_alg.grouping.nearest import closest_direction
from fedjax_alg.grouping.nearest import nearest_centre
from fedjax_alg.grouping.projection import lift
from fedjax_alg.grouping.projection import place
from fedjax_alg.grouping.projection import project
from fedjax_alg.grouping.projection import Projection
from fedjax_alg.grouping.similarity import cosine
from fedjax_alg.grouping.similarity import distances
from fedjax_alg.grouping.similarity import edc
from fedjax_alg.grouping.similarity import edc_points
from fedjax_alg.grouping.similarity import gram
from fedjax_alg.grouping.similarity import madc
from fedjax_alg.grouping.similarity import METRICS

__all__ = ["Groups", "Hierarchy", "LINKAGES", "METRICS", "Projection",
           "agglomerate", "closest_direction", "cosine", "distances", "edc",
           "edc_points", "farthest_first", "gram", "kmeans", "lift", "lloyd",
           "madc", "nearest_centre", "place", "plus_plus", "project"]
