"""``python -m lagwise``, which is what ``torchrun -m lagwise`` runs."""

from lagwise.cli import main

main()
