"""Benchmarks of speed, memory and quality against peers."""
