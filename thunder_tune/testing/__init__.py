"""Fakes, small models and contract suites, for the tests and for third parties' plugins."""
