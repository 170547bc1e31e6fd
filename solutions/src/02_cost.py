# %% [markdown]
# # 02 Cost: exercises
#
# Lesson 02 put a price on a collective: alpha, paid once a message, and beta, paid for each byte. Here you fit both
# to measurements, predict a run before it is made, choose how a gradient is cut, and find the size of group at which
# tensor parallelism stops paying. After this you can say how long a step will communicate before you start it.
#
# - These answers are calculations, so they are functions in ordinary cells, without `%%px`: plain Python, and NumPy
#   where you like.
# - Sizes are bytes of the whole array, times are seconds, as everywhere in the lesson.
# - A check calls your function with new random numbers each time and compares what it returns. It may not call
#   the course's own version in `tpcourse.costs`. The second check also measures on your ranks, which takes some seconds.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, costs, draw, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Fit a line
# Difficulty 1 of 3 · 10 minutes · uses section 2 of the lesson
#
# Write `fit_line(sizes, times)`. `sizes` is a list of bytes and `times` a list of the seconds that they took, equally long, in
# no particular order; a size may come twice. Return the pair `(alpha, beta)`, seconds and seconds a byte, for which the sum of
# the squared *relative* errors, $\sum_i \big(\frac{\alpha + \beta n_i}{t_i} - 1\big)^2$, is least.
#
# Budget: nothing is sent.

# %% nbgrader={"grade": false, "grade_id": "fit_line", "locked": false, "schema_version": 3, "solution": true, "task": false}
import numpy as np


def fit_line(sizes, times):
    """alpha and beta with the least squared relative errors: [k], [k] -> two numbers."""
    ### BEGIN SOLUTION
    sizes, times = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    unit = sizes.max()  # so that both unknowns are seconds, and rounding does no harm
    equations = np.stack([1 / times, sizes / unit / times], axis=1)  # [k, 2], each wants to be 1
    (alpha, beta), *_ = np.linalg.lstsq(equations, np.ones(len(times)), rcond=None)
    return alpha, beta / unit
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Every measurement is an equation, alpha + beta n = t. Least squares makes the errors of the equations small. Divide an equation by
# its t, and its error is a relative one.
# </details>
#
# <details><summary>Hint 2: shapes</summary>
#
# | | shape | row i |
# |---|---|---|
# | matrix | [k, 2] | 1/t, n/t |
# | unknowns | [2] | alpha, beta |
# | right side | [k] | 1 |
#
# `numpy.linalg.lstsq(matrix, right_side)` solves it; so do two equations by hand, or `numpy.polyfit(sizes, times, 1, w=...)`.
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# sizes, times = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
# equations = np.stack([1 / times, sizes / times], axis=1)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_fit_line", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "fit_line")

# %% [markdown]
# ## 2. Predict, then measure
# Difficulty 2 of 3 · 15 minutes · uses exercise 1
#
# Write `predict(measured, wanted)`. `measured` is a list of `(op, num_bytes, seconds)`, where `op` is "all_reduce", "all_gather" or
# "reduce_scatter"; `wanted` is a list of `(op, num_bytes)`, at sizes that were not measured. Return a list with one time for each
# entry of `wanted`, in its order.
#
# The check then measures on your ranks, gives you every second size, and holds your times for the others against the run: the
# median error may be 35 % on gloo and 15 % on NCCL.
#
# Budget: nothing is sent by you.

# %% nbgrader={"grade": false, "grade_id": "predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
def predict(measured, wanted):
    """Seconds for each (op, num_bytes) that is wanted, from those that were measured."""
    ### BEGIN SOLUTION
    lines = {}
    for op in {op for op, _, _ in measured}:
        mine = [(n, t) for name, n, t in measured if name == op]
        lines[op] = fit_line([n for n, _ in mine], [t for _, t in mine])
    return [lines[op][0] + lines[op][1] * n for op, n in wanted]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# An all-reduce sends twice what an all-gather sends, so one line cannot fit both. Fit a line to each operation.
# </details>
#
# <details><summary>Hint 2: what goes where</summary>
#
# | | is | of |
# |---|---|---|
# | `lines[op]` | `(alpha, beta)` | all measurements of `op` |
# | the result's entry i | alpha + beta n | the op and the n of `wanted[i]` |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# lines = {}
# for op in {op for op, _, _ in measured}:
#     mine = [(n, t) for name, n, t in measured if name == op]
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_predict", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "predict")

# %% [markdown]
# ## 3. Choose a bucket size
# Difficulty 3 of 3 · 25 minutes · uses section 1 of the lesson
#
# Data parallelism sums a gradient over the ranks while backward still makes it. Gradients become ready at an even rate over `backward_s`
# seconds. They are cut into buckets of equal size; a bucket is summed as soon as it is full **and** the sum before it has ended. A sum of
# n bytes takes alpha + beta n.
#
# Write `bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte)`: the size of a bucket, in bytes, with which the last sum
# ends first. The time between the end of backward and the end of the last sum may be a tenth more than the least possible.
#
# Budget: one sum for each bucket.

# %% nbgrader={"grade": false, "grade_id": "bucket_bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    """Bytes of the buckets with which the last sum ends first: four numbers -> one."""

    ### BEGIN SOLUTION
    def end_s(num_buckets):
        gap_s = backward_s / num_buckets  # until a bucket is full
        sum_s = alpha_s + beta_s_per_byte * gradient_bytes / num_buckets
        return gap_s + (num_buckets - 1) * max(gap_s, sum_s) + sum_s

    return gradient_bytes / min(range(1, 10_000), key=end_s)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Write down when the last of k sums ends, as a function of k, and try many k. There are two cases: a sum is shorter than the time in which
# the next bucket fills, and only the last sum is left when backward ends; or it is longer, and the sums queue.
# </details>
#
# <details><summary>Hint 2: k buckets</summary>
#
# | | seconds |
# |---|---|
# | the first bucket is full at | T/k, with T = backward_s |
# | a sum takes | c = alpha + beta n/k |
# | from the start of one sum to the start of the next | the longer of T/k and c |
# | the last sum ends at | T/k + (k-1) max(T/k, c) + c |
# </details>
#
# <details><summary>Hint 3: the last line</summary>
#
# ```python
# return gradient_bytes / min(range(1, 10_000), key=end_s)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_bucket_bytes", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "bucket_bytes")

# %% [markdown]
# ## 4. Where tensor parallelism stops paying
# Difficulty 2 of 3 · 20 minutes · uses section 6 of the lesson
#
# Write `tensor_parallel(model, flops_per_s, bytes_per_s)` for one layer's forward on 2, 4 and 8 ranks. `model` has the widths `D`, `F` and `K`, that of
# one head, and the numbers `H` of query heads and `kv_heads` of key heads; there are as many value heads. The layer has four products:
#
# 1. queries, keys and values together, from [tokens, D], cut by columns;
# 2. the output of attention, from width H K back to D, cut by rows;
# 3. two matrices of the MLP at once, gate and up, from D to F columns each, cut by columns;
# 4. down, from F back to D, cut by rows.
#
# There is an all-gather before 1 and 3, a reduce-scatter after 2 and 4, of [tokens, D] in bf16.
#
# Return a dict p -> r, with r = all communication / all products, and the largest of 2, 4, 8 with r at most 1 (or 1 if there is
# none). Leave out alpha and attention's own products.
#
# Budget: four collectives a layer, each (p-1)/p of the array.

# %% nbgrader={"grade": false, "grade_id": "tensor_parallel", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tensor_parallel(model, flops_per_s, bytes_per_s):
    """({2: r, 4: r, 8: r}, the largest p with r at most 1) for one layer's forward."""
    ### BEGIN SOLUTION
    width = (2 * model.H + 2 * model.kv_heads) * model.K + 3 * model.F
    ratios = {}
    for p in (2, 4, 8):  # seconds of one token: the number of tokens cancels
        communication_s = 4 * (p - 1) / p * 2 * model.D / bytes_per_s
        product_s = 2 * model.D * width / p / flops_per_s
        ratios[p] = communication_s / product_s
    return ratios, max([1, *(p for p in ratios if ratios[p] <= 1)])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Count for one token; the number of tokens cancels. A product [1, D] @ [D, N] is 2 D N FLOPs, and the ranks share it. A collective of D numbers of
# 2 bytes sends (p-1)/p of them.
# </details>
#
# <details><summary>Hint 2: widths</summary>
#
# | product | on one device | cut by | width |
# |---|---|---|---|
# | queries, keys, values | [tokens, D] @ [D, ...] | columns | (H + 2 kv_heads) K |
# | output | [tokens, ...] @ [..., D] | rows | H K |
# | gate and up | [tokens, D] @ [D, ...] | columns | 2 F |
# | down | [tokens, ...] @ [..., D] | rows | F |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# width = (2 * model.H + 2 * model.kv_heads) * model.K + 3 * model.F
# ratios = {}
# for p in (2, 4, 8):
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_tensor_parallel", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "tensor_parallel")

# %% [markdown]
# Your function on a real model, by figures on paper: an H100 and each link. How far down can you go before the smallest group talks longer than it
# multiplies?

# %%
model, flops = costs.MODELS["Llama 3 8B"], costs.PEAK_FLOPS["H100"]
ratios = {name: tensor_parallel(model, flops, link.bytes_per_s)[0] for name, link in costs.LINKS.items() if name != "loopback"}
draw.link_ratios(ratios, f"{model.name} on 2, 4 and 8 x H100")

# %% [markdown]
# You fitted a line, trusted it at sizes that nobody had measured, cut a gradient so that little of its sum shows, and found that the same
# model may be split over four ranks on one link and over none on another. All of it came from two numbers a link. What none of it asked is
# whether the model fits: lesson 03 counts bytes that stay.
