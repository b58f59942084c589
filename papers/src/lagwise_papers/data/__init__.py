"""Published and generated data sets, and the layouts of their files."""
