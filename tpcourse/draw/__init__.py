"""Pictures of what ranks hold and send: colour = rank, hatch = communication.

Every function is pure: `(data, ax=None) -> Axes`. As the last line of a cell it shows its picture once.
Matplotlib is loaded by the first picture, not by `import tpcourse.draw`.
"""

from typing import TYPE_CHECKING

from tpcourse.lazy import lazy

if TYPE_CHECKING:
    from tpcourse.draw.activation_bars import activations as activations
    from tpcourse.draw.algorithms import ALGORITHMS as ALGORITHMS
    from tpcourse.draw.algorithms import play as play
    from tpcourse.draw.bars import memory_bars as memory_bars
    from tpcourse.draw.buckets import bucket_curve as bucket_curve
    from tpcourse.draw.buckets import bucket_order as bucket_order
    from tpcourse.draw.cells import before_after as before_after
    from tpcourse.draw.cells import exchange as exchange
    from tpcourse.draw.cost_controls import cost_sliders as cost_sliders
    from tpcourse.draw.cost_curves import algorithm_times as algorithm_times
    from tpcourse.draw.cost_curves import bandwidths as bandwidths
    from tpcourse.draw.cost_curves import cost_fit as cost_fit
    from tpcourse.draw.cost_links import link_ratios as link_ratios
    from tpcourse.draw.cost_links import product_bars as product_bars
    from tpcourse.draw.courses import progress as progress
    from tpcourse.draw.curve import memory_curve as memory_curve
    from tpcourse.draw.diagram import messages as messages
    from tpcourse.draw.exposed import exposed_times as exposed_times
    from tpcourse.draw.exposed import recorded_exposed as recorded_exposed
    from tpcourse.draw.exposed import recorded_step as recorded_step
    from tpcourse.draw.flats import flat_pieces as flat_pieces
    from tpcourse.draw.hiding import hidden_by_shape as hidden_by_shape
    from tpcourse.draw.hiding import overlap_times as overlap_times
    from tpcourse.draw.hiding import recorded_overlap as recorded_overlap
    from tpcourse.draw.hiding import recorded_spans as recorded_spans
    from tpcourse.draw.lanes import timeline as timeline
    from tpcourse.draw.layers import layers_here as layers_here
    from tpcourse.draw.losses import loss_curve as loss_curve
    from tpcourse.draw.mesh import grid as grid
    from tpcourse.draw.orders import order as order
    from tpcourse.draw.orders import timelines as timelines
    from tpcourse.draw.pairs import pair_ratio as pair_ratio
    from tpcourse.draw.pairs import recorded_pairs as recorded_pairs
    from tpcourse.draw.panels import four_panels as four_panels
    from tpcourse.draw.panels import recorded_profile as recorded_profile
    from tpcourse.draw.piggy import piggy_bank as piggy_bank
    from tpcourse.draw.piggy_sliders import piggy_bank_sliders as piggy_bank_sliders
    from tpcourse.draw.recorded_zero import memory_and_time as memory_and_time
    from tpcourse.draw.recorded_zero import recorded_stages as recorded_stages
    from tpcourse.draw.recordings import recorded as recorded
    from tpcourse.draw.rounds import bands as bands
    from tpcourse.draw.rounds import steps as steps
    from tpcourse.draw.scale import by_ranks as by_ranks
    from tpcourse.draw.scale import recorded_scale as recorded_scale
    from tpcourse.draw.shares import error_table as error_table
    from tpcourse.draw.shares import memory_shares as memory_shares
    from tpcourse.draw.shares import traffic_curve as traffic_curve
    from tpcourse.draw.source import show_source as show_source
    from tpcourse.draw.spans import intervals as intervals
    from tpcourse.draw.spent import link_share as link_share
    from tpcourse.draw.splits import head_cells as head_cells
    from tpcourse.draw.splits import two_splits as two_splits
    from tpcourse.draw.splits import weight_pieces as weight_pieces
    from tpcourse.draw.stages import stage_bytes as stage_bytes
    from tpcourse.draw.stepper import collective_stepper as collective_stepper
    from tpcourse.draw.symbols import holdings as holdings
    from tpcourse.draw.times import split_times as split_times

_HOME = {
    "exposed_times": "exposed", "recorded_exposed": "exposed", "recorded_step": "exposed",
    "ALGORITHMS": "algorithms", "play": "algorithms", "memory_bars": "bars", "before_after": "cells",
    "exchange": "cells", "messages": "diagram", "holdings": "symbols", "intervals": "spans",
    "timeline": "lanes", "grid": "mesh", "bands": "rounds", "steps": "rounds", "show_source": "source",
    "collective_stepper": "stepper",
    "cost_sliders": "cost_controls", "algorithm_times": "cost_curves", "bandwidths": "cost_curves",
    "cost_fit": "cost_curves", "link_ratios": "cost_links", "product_bars": "cost_links",
    "memory_curve": "curve", "piggy_bank": "piggy", "piggy_bank_sliders": "piggy_sliders",
    "bucket_curve": "buckets", "bucket_order": "buckets", "recorded": "recordings",
    "loss_curve": "losses", "error_table": "shares", "memory_shares": "shares", "traffic_curve": "shares",
    "split_times": "times", "head_cells": "splits", "two_splits": "splits", "weight_pieces": "splits",
    "activations": "activation_bars", "pair_ratio": "pairs", "recorded_pairs": "pairs",
    "flat_pieces": "flats", "layers_here": "layers", "stage_bytes": "stages",
    "link_share": "spent", "memory_and_time": "recorded_zero", "recorded_stages": "recorded_zero",
    "hidden_by_shape": "hiding", "overlap_times": "hiding", "recorded_overlap": "hiding", "recorded_spans": "hiding",
    "order": "orders", "timelines": "orders",
    "four_panels": "panels", "recorded_profile": "panels",
    "progress": "courses",
    "by_ranks": "scale", "recorded_scale": "scale",
}  # fmt: skip
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
