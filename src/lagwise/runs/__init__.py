"""Work on the folder of a run: evaluate, predict, convert, export; and import of other programs' folders."""

from lagwise.runs.convert import CONVERSION_FILE, convert_run
from lagwise.runs.evaluate import EVALUATION_FILE, evaluate_run
from lagwise.runs.export import EXPORT_FILE, export_run
from lagwise.runs.importing import import_run
from lagwise.runs.predict import predict_run

__all__ = [
    "CONVERSION_FILE",
    "EVALUATION_FILE",
    "EXPORT_FILE",
    "convert_run",
    "evaluate_run",
    "export_run",
    "import_run",
    "predict_run",
]
