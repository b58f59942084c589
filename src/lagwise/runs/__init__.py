"""Work on the folder of a run: evaluate, predict, embed, watch, convert, export.

Lazy: a prediction needs no conversion and no evaluation.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.runs.convert import CONVERSION_FILE, convert_run
    from lagwise.runs.embed import embed_run
    from lagwise.runs.evaluate import EVALUATION_FILE, evaluate_run
    from lagwise.runs.export import EXPORT_FILE, export_run
    from lagwise.runs.predict import predict_run
    from lagwise.runs.watch import Watch, conformal_threshold, watch_run

__all__, __getattr__, __dir__ = lazy_package(__name__)
