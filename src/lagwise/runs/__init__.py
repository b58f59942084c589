"""What is done with the folder of a trained run: evaluate, predict, convert; and how folders of others become one."""

from lagwise.runs.convert import CONVERSION_FILE, convert_run
from lagwise.runs.evaluate import EVALUATION_FILE, evaluate_run
from lagwise.runs.importing import import_run
from lagwise.runs.predict import predict_run

__all__ = ["CONVERSION_FILE", "EVALUATION_FILE", "convert_run", "evaluate_run", "import_run", "predict_run"]
