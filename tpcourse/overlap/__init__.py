"""A product and the collective that it needs, at the same time: gather + product, product + scatter-sum.

Each has several forms behind one signature: `serial` is what they are compared with; `ring` is made of send and
receive; `peer` copies between the memories of GPUs that reach each other; `popular` is what circulates, and hides
nothing. Backwards each is the other, and hides its collectives under products that do not need them.
"""

from tpcourse.overlap.forms import FORMS
from tpcourse.overlap.gather import gather_product
from tpcourse.overlap.scatter import product_scatter

__all__ = ["FORMS", "gather_product", "product_scatter"]
