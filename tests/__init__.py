"""The tests; a package, so that ``tests.problems`` can be imported."""

from tests import shapes

shapes.install()
