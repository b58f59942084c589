"""Training by torchtitan, which finds the configurations by the name of this package (docs/cluster.md)."""
