"""The tests; a package, so that ``tests.problems`` can be imported."""
