"""What communication costs: two numbers a link, formulas, fits to measurements, and the product beside it.

Plain Python, no torch: everything here is a calculation. `tpcourse.ranks.timing` measures.
"""

from tpcourse.costs.buckets import best_bucket, finish_s
from tpcourse.costs.fitting import Fit, errors, every_other, fit, fit_each, median_error, predict
from tpcourse.costs.formulas import ALGORITHMS, Algorithm, crossing, seconds
from tpcourse.costs.links import LINKS, Link, find_link, half_size
from tpcourse.costs.measured import BUS_FACTORS, Measurement
from tpcourse.costs.models import MODELS, PEAK_FLOPS, Model, find_model
from tpcourse.costs.products import (
    Times,
    best_speedup,
    gradient_ratio,
    largest_tp,
    layer_ratio,
    layer_times,
    overlap_ratio,
    product_flops,
)
from tpcourse.costs.recording import Recording, recorded, recorded_link, recorded_links

__all__ = [
    "ALGORITHMS",
    "BUS_FACTORS",
    "LINKS",
    "MODELS",
    "PEAK_FLOPS",
    "Algorithm",
    "Fit",
    "Link",
    "Measurement",
    "Model",
    "Recording",
    "Times",
    "best_bucket",
    "best_speedup",
    "crossing",
    "errors",
    "every_other",
    "find_link",
    "find_model",
    "finish_s",
    "fit",
    "fit_each",
    "gradient_ratio",
    "half_size",
    "largest_tp",
    "layer_ratio",
    "layer_times",
    "median_error",
    "overlap_ratio",
    "predict",
    "product_flops",
    "recorded",
    "recorded_link",
    "recorded_links",
    "seconds",
]
