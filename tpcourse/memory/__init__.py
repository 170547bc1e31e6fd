"""Who holds which bytes: counted by storage on this rank, beside the formulas.

`held` counts what is there now, `saved` what autograd keeps for backward, `peak` the most that was there at
one time. `model_state_bytes`, `activation_bytes` and `Rates` say what the formulas expect; they and `Held`
need no torch, so a notebook's kernel can draw what the ranks counted.
"""

from typing import TYPE_CHECKING

from tpcourse.lazy import lazy

if TYPE_CHECKING:
    from tpcourse.memory.counts import KINDS as KINDS
    from tpcourse.memory.counts import Held as Held
    from tpcourse.memory.counts import Peak as Peak
    from tpcourse.memory.counts import Saved as Saved
    from tpcourse.memory.formulas import RECOMPUTE as RECOMPUTE
    from tpcourse.memory.formulas import activation_bytes as activation_bytes
    from tpcourse.memory.formulas import gpt_parameters as gpt_parameters
    from tpcourse.memory.formulas import gpt_width as gpt_width
    from tpcourse.memory.formulas import layer_flops as layer_flops
    from tpcourse.memory.formulas import layer_parameters as layer_parameters
    from tpcourse.memory.formulas import model_state_bytes as model_state_bytes
    from tpcourse.memory.holding import held as held
    from tpcourse.memory.rates import Rates as Rates
    from tpcourse.memory.saving import saved as saved
    from tpcourse.memory.watching import peak as peak

_HOME = {
    "KINDS": "counts", "Held": "counts", "Peak": "counts", "Saved": "counts", "RECOMPUTE": "formulas",
    "activation_bytes": "formulas", "gpt_parameters": "formulas", "gpt_width": "formulas",
    "layer_flops": "formulas", "layer_parameters": "formulas", "model_state_bytes": "formulas",
    "held": "holding", "Rates": "rates", "saved": "saving", "peak": "watching",
}  # fmt: skip
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
