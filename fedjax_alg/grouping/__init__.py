"""Grouping clients according to their trained models or updates."""

from fedjax_alg.grouping.hierarchy import agglomerate, Hierarchy, LINKAGES
from fedjax_alg.grouping.kmeans import farthest_first, Groups, kmeans, lloyd
from fedjax_alg.grouping.kmeans import plus_plus
from fedjax_alg.grouping.nearest import closest_direction, nearest_centre
from fedjax_alg.grouping.projection import lift, place, project, Projection
from fedjax_alg.grouping.similarity import cosine, distances, edc, edc_points
from fedjax_alg.grouping.similarity import gram, madc, METRICS

__all__ = ["Groups", "Hierarchy", "LINKAGES", "METRICS", "Projection",
           "agglomerate", "closest_direction", "cosine", "distances", "edc",
           "edc_points", "farthest_first", "gram", "kmeans", "lift", "lloyd",
           "madc", "nearest_centre", "place", "plus_plus", "project"]
