"""Grouping of clients by what they trained."""

from fedjax_alg.grouping.kmeans import farthest_first
from fedjax_alg.grouping.kmeans import Groups
from fedjax_alg.grouping.kmeans import lloyd
from fedjax_alg.grouping.projection import lift
from fedjax_alg.grouping.projection import place
from fedjax_alg.grouping.projection import project
from fedjax_alg.grouping.projection import Projection

__all__ = ["Groups", "Projection", "farthest_first", "lift", "lloyd", "place",
           "project"]
