"""The parts of lagwise that reproduce papers: mixers of other models, published data sets with their recipes, imports
of other projects' weights, and benchmarks against other methods.

Its parts have names in lagwise's tables by entry points; lagwise works without it.
"""
