"""``python -m lagwise``, which ``torchrun -m lagwise`` runs."""

from lagwise.cli import main

main()
