"""Work on the folder of a run: evaluate, predict, convert, export; and import of other programs' folders.

Lazy: a prediction needs no conversion and no evaluation.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "CONVERSION_FILE": "lagwise.runs.convert",
        "EVALUATION_FILE": "lagwise.runs.evaluate",
        "EXPORT_FILE": "lagwise.runs.export",
        "convert_run": "lagwise.runs.convert",
        "evaluate_run": "lagwise.runs.evaluate",
        "export_run": "lagwise.runs.export",
        "import_run": "lagwise.runs.importing",
        "predict_run": "lagwise.runs.predict",
    },
)
