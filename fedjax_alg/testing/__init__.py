"""The contract as a test of any method: ``check`` holds it to every clause.

The problem and the program that the clauses measure are in ``bench``. Clauses on
roles and on targets are in ``roles``, all others and their list in ``clauses``.
"""

from fedjax_alg.testing.clauses import Case, Finding, cases, check

__all__ = ["Case", "Finding", "cases", "check"]
