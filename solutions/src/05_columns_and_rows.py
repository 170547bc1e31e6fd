# %% [markdown]
# # 05 Columns and rows: exercises
#
# Lesson 05 cut the weights of a GPT by columns, by rows, by heads and by vocabulary. Here you write each cut. After this you can split any
# product over ranks, say which sum forward owes and which backward owes, and prove it against one device.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - `tp` is the group to work in. `dist.get_rank(tp)` is this rank's place in it, `dist.get_world_size(tp)` is p. It may be smaller than the
#   world, so every call needs `group=tp`.
# - Weights are as in torch, [out, in], and y = x Wᵀ + b. [F/p, D] is this rank's part of a weight [F, D]; p divides F. What is not cut is
#   whole and equal on every rank.
# - A function returns y, with autograd's graph behind it: no `no_grad`, no `detach`. The check runs backward from it, with a random dy.
# - A check runs your function on groups of 2, 3 and 4 ranks where there are as many, with new float64 inputs each time and no bias at zero.
#   It compares y **and every gradient** with one device, and the calls in the ledger with the budget.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# What the exercises use, on every rank. Exercises 1 and 2 write the pair `copy_sum` and `sum_copy` themselves.

# %%
# %%px
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from tpcourse.conjugates import copy_sum, sum_copy
from tpcourse.dims import split_range

# %% [markdown]
# ## 1. Columns
# Difficulty 1 of 3 · 15 minutes · uses `torch.autograd.Function`, `dist.all_reduce`
#
# `x` [B, D] is equal on all ranks; `weight` [F/p, D] and `bias` [F/p] are this rank's rows, which make columns of y. Write
# `column_product(x, weight, bias, tp)`: return this rank's columns, [B, F/p]. The gradient of x must be that of one device, so write `Copy`
# too: it hands x on in forward, and its backward does what the p ranks owe x.
#
# Budget: nothing in forward; one `all_reduce` of dx, [B, D], in backward.

# %% nbgrader={"grade": false, "grade_id": "column_product", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
class Copy(torch.autograd.Function):
    """f: x as it is in forward, and in backward what that owes. Shapes: [...] -> [...]."""

    @staticmethod
    def forward(ctx, x, tp):
        ### BEGIN SOLUTION
        ctx.tp = tp
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        dx = dy.clone()
        dist.all_reduce(dx, group=ctx.tp)
        return dx, None  # tp has no gradient
        ### END SOLUTION


def column_product(x, weight, bias, tp):
    """This rank's columns of x W^T + b: [B, D] -> [B, F/p]."""
    ### BEGIN SOLUTION
    return Copy.apply(x, tp) @ weight.T + bias
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# One device has one product, $y = x W^\top$, and $dx = dy\,W$. Cut by columns, dy W is a sum over the columns of y, and each rank has some of its
# terms. Nobody adds them up unless you do.
# </details>
#
# <details><summary>Hint 2: what a Function's methods return</summary>
#
# | method | gets | returns |
# |---|---|---|
# | `forward(ctx, x, tp)` | x [B, D] | x.view_as(x); `ctx.tp = tp` keeps the group for backward |
# | `backward(ctx, dy)` | this rank's part of dx, [B, D] | the sum, and `None` for `tp` |
# </details>
#
# <details><summary>Hint 3: the last line</summary>
#
# ```python
# return Copy.apply(x, tp) @ weight.T + bias
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_column_product", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "column_product")

# %% [markdown]
# ## 2. Rows, with a bias
# Difficulty 2 of 3 · 15 minutes · uses exercise 1
#
# Now the dim that the product adds over is cut: `x` [B, F/p] and `weight` [D, F/p] are this rank's columns of both. `bias` [D] is whole on every
# rank. Write `row_product(x, weight, bias, tp)`: return y [B, D], equal on all ranks. Write the pair of exercise 1 the other way round: sum
# forward, and in backward what belongs to it.
#
# Budget: one `all_reduce` of y, [B, D], in forward; nothing in backward.

# %% nbgrader={"grade": false, "grade_id": "row_product", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
class Sum(torch.autograd.Function):
    """g: the sum over ranks in forward, and in backward what that owes. Shapes: [...] -> [...]."""

    @staticmethod
    def forward(ctx, partial, tp):
        ### BEGIN SOLUTION
        total = partial.clone()
        dist.all_reduce(total, group=tp)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        return dy, None
        ### END SOLUTION


def row_product(x, weight, bias, tp):
    """The whole x W^T + b on every rank: [B, F/p] -> [B, D]."""
    ### BEGIN SOLUTION
    return Sum.apply(x @ weight.T, tp) + bias
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Write y with its sum over ranks, $y = \sum_r x_r W_r^\top + b$. How often is $b$ in it? And if every rank holds the same y, and so the same dy, what is
# the derivative by $x_r$: does it need anything of another rank?
# </details>
#
# <details><summary>Hint 2: who has which gradient, when dy is equal on all ranks</summary>
#
# | gradient | is | shape |
# |---|---|---|
# | dx | dy times this rank's weight | [B, F/p] |
# | dweight | dyᵀ times this rank's x | [D, F/p] |
# | dbias | dy, summed over B: the same on every rank | [D] |
# </details>
#
# <details><summary>Hint 3: the first line of forward</summary>
#
# ```python
# total = partial.clone()  # an all-reduce writes into what it is given
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_row_product", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "row_product")

# %% [markdown]
# ## 3. An MLP with two sums
# Difficulty 2 of 3 · 15 minutes · uses `copy_sum`, `sum_copy`
#
# Write `parallel_mlp(x, weight1, bias1, weight2, bias2, tp)`. `x` [B, T, D] and `bias2` [D] are whole; `weight1` [F/p, D], `bias1` [F/p] and `weight2`
# [D, F/p] are this rank's. Return y [B, T, D] = gelu(x W₁ᵀ + b₁) W₂ᵀ + b₂, equal on all ranks. The pairs that you wrote are
# `copy_sum(x, group=tp)` and `sum_copy(partial, group=tp)` from `tpcourse.conjugates`.
#
# Budget: two `all_reduce` of [B, T, D] in all, one forward and one backward.

# %% nbgrader={"grade": false, "grade_id": "parallel_mlp", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def parallel_mlp(x, weight1, bias1, weight2, bias2, tp):
    """gelu(x W1^T + b1) W2^T + b2 on every rank: [B, T, D] -> [B, T, D]."""
    ### BEGIN SOLUTION
    h = gelu(copy_sum(x, group=tp) @ weight1.T + bias1)  # [B, T, F/p]
    return sum_copy(h @ weight2.T, group=tp) + bias2
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# What leaves a product that is cut by columns is what enters one that is cut by rows. gelu works on each element alone, so it does not mind the cut.
# </details>
#
# <details><summary>Hint 2: shapes on the way</summary>
#
# | tensor | shape | on the ranks |
# |---|---|---|
# | x | [B, T, D] | equal |
# | h = gelu(x W₁ᵀ + b₁) | [B, T, F/p] | other columns on each |
# | h W₂ᵀ | [B, T, D] | partial: to be added up |
# | y | [B, T, D] | equal |
# </details>
#
# <details><summary>Hint 3: the first line</summary>
#
# ```python
# h = gelu(copy_sum(x, group=tp) @ weight1.T + bias1)  # [B, T, F/p]
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_parallel_mlp", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "parallel_mlp")

# %% [markdown]
# ## 4. Attention, with K and V heads that ranks share
# Difficulty 3 of 3 · 30 minutes · uses exercise 3, `scaled_dot_product_attention`
#
# Write `parallel_attention(x, q_weight, kv_weight, out_weight, out_bias, tp, shared)`, causal. This rank has H/p query heads of width K:
# `q_weight` [(H/p) K, D] and `out_weight` [D, (H/p) K]. There are fewer K and V heads than ranks, so it has one: `kv_weight` [2K, D], K first. The
# ranks of the group `shared` hold the same one, and it must stay the same. `x` [B, T, D] and `out_bias` [D] are whole.
#
# Budget: one `all_reduce` on `tp` forward and one backward; one of kv_weight's size on `shared`, backward.

# %% nbgrader={"grade": false, "grade_id": "parallel_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def parallel_attention(x, q_weight, kv_weight, out_weight, out_bias, tp, shared):
    """Causal attention by heads, equal on every rank: [B, T, D] -> [B, T, D]."""
    ### BEGIN SOLUTION
    K = len(kv_weight) // 2
    x = copy_sum(x, group=tp)
    q = (x @ q_weight.T).unflatten(-1, (-1, K)).transpose(1, 2)  # [B, H/p, T, K]
    k, v = (x @ copy_sum(kv_weight, group=shared).T)[:, None].chunk(2, -1)  # [B, 1, T, K] each
    y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  # [B, H/p, T, K]
    return sum_copy(y.transpose(1, 2).flatten(2) @ out_weight.T, group=tp) + out_bias
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Heads do not know of each other, so a rank computes its own from Q to the output's product. That product is cut by rows. Then ask of each tensor that
# several ranks hold: is the work behind it the same on all of them? x is one such tensor. It is not the only one.
# </details>
#
# <details><summary>Hint 2: shapes on the way</summary>
#
# | tensor | shape |
# |---|---|
# | x q_weightᵀ | [B, T, (H/p) K], as heads [B, H/p, T, K] |
# | x kv_weightᵀ | [B, T, 2K], as one head each [B, 1, T, K] |
# | `scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)` | [B, H/p, T, K], as columns [B, T, (H/p) K] |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# K = len(kv_weight) // 2
# x = copy_sum(x, group=tp)
# q = (x @ q_weight.T).unflatten(-1, (-1, K)).transpose(1, 2)  # [B, H/p, T, K]
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_parallel_attention", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "parallel_attention")

# %% [markdown]
# ## 5. Cross-entropy over a split vocabulary
# Difficulty 3 of 3 · 30 minutes · uses `sum_copy`, `split_range`
#
# Write `vocabulary_loss(logits, targets, V, tp)`: the mean cross-entropy, a number, equal on all ranks. `logits` [N, V/p] are this rank's columns,
# from `start` up to `end` with `start, end = split_range(V, p, r)`; p need not divide V. `targets` [N] are column numbers of the whole vocabulary. A token's
# logits may be near 900 or near -900, those of one rank 900 above those of another.
#
# Budget: three numbers for each token in `all_reduce`, whatever V is; nothing in backward. Bytes kept for backward: at most two tensors
# of the shape of `logits`, beside `logits`.

# %% nbgrader={"grade": false, "grade_id": "vocabulary_loss", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def vocabulary_loss(logits, targets, V, tp):
    """The mean of -log softmax(logits)[target]: [N, V/p], [N] -> []."""
    ### BEGIN SOLUTION
    start, end = split_range(V, dist.get_world_size(tp), dist.get_rank(tp))
    top = logits.detach().amax(-1)  # [N]
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=tp)
    mine = (targets >= start) & (targets < end)
    index = torch.where(mine, targets - start, 0)
    target_logit = (logits.gather(1, index[:, None])[:, 0] - top) * mine  # [N], 0 where another rank has it
    exp_sum = (logits - top[:, None]).exp().sum(-1)  # [N]
    exp_sum, target_logit = sum_copy(torch.stack([exp_sum, target_logit]), group=tp)
    return (exp_sum.log() - target_logit).mean()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# For one token, $-\log \mathrm{softmax}(l)_t = \log \sum_v e^{l_v - m} - (l_t - m)$ for any m. Two sums over the vocabulary are in it, if you count the one with a
# single term. Sums can be taken in parts.
# </details>
#
# <details><summary>Hint 2: three numbers for each token</summary>
#
# | number | of this rank's columns | over ranks |
# |---|---|---|
# | m | the largest logit, without a gradient | `dist.all_reduce(m, op=dist.ReduceOp.MAX, group=tp)` |
# | Σ exp(l - m) | the sum of its columns | `sum_copy` |
# | l_t - m | this, if `start <= t < end`; else 0 | `sum_copy` |
# </details>
#
# <details><summary>Hint 3: an index that is always inside</summary>
#
# ```python
# mine = (targets >= start) & (targets < end)
# index = torch.where(mine, targets - start, 0)  # what is not mine must not count: multiply by mine
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_vocabulary_loss", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "vocabulary_loss")

# %% [markdown]
# ## 6. The norm of all gradients
# Difficulty 1 of 3 · 10 minutes · uses `dist.all_reduce`
#
# To clip, all ranks need the norm that one device has: the root of the sum of the squares of all gradients. Write
# `gradient_norm(gradients, is_split, tp)`. `gradients` is a list of tensors; `is_split[i]` is true if `gradients[i]` is this rank's part of a larger
# one, and false if it is whole and equal on all ranks. Return a tensor without dims, `[]`.
#
# Budget: one `all_reduce` of one number.

# %% nbgrader={"grade": false, "grade_id": "gradient_norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def gradient_norm(gradients, is_split, tp):
    """The norm of one device's gradients, on every rank: [...] each -> []."""
    ### BEGIN SOLUTION
    squares = [g.square().sum() for g in gradients]
    total = torch.stack([s for s, split in zip(squares, is_split) if split]).sum()
    dist.all_reduce(total, group=tp)
    total += torch.stack([s for s, split in zip(squares, is_split) if not split]).sum()
    return total.sqrt()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Every element of one device's gradients counts once. An element of a shard is on one rank. How often is an element of a whole gradient there?
# </details>
#
# <details><summary>Hint 2: what may be added up</summary>
#
# | quantity | over tensors | over ranks |
# |---|---|---|
# | squares of shards | add | add |
# | squares of whole gradients | add | nothing: all ranks have them |
# | norms | never | never |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_gradient_norm", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "gradient_norm")

# %% [markdown]
# ## 7. Bug hunt: right on one device, and off on two
# Difficulty 1 of 3 · 10 minutes · uses exercise 3
#
# This half of a transformer block passed all its tests, and its model trained on one GPU as it should. On 2 ranks the output is off by the same
# vector for every token, on 4 ranks by three times that vector.

# %% [markdown]
# ```python
# def residual_mlp(x, weight1, bias1, weight2, bias2, tp):
#     h = gelu(linear(copy_sum(x, group=tp), weight1, bias1))
#     y = linear(h, weight2, bias2)
#     return x + sum_copy(y, group=tp)
# ```
#
# Shapes are those of exercise 3. Repair it, so that y and **all** gradients are those of one device. Then say why its tests had
# passed. (What are the biases of a new model?)
#
# Budget: as it is, two `all_reduce` of [B, T, D] in all.

# %% nbgrader={"grade": false, "grade_id": "residual_mlp", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def residual_mlp(x, weight1, bias1, weight2, bias2, tp):
    """x + gelu(x W1^T + b1) W2^T + b2 on every rank: [B, T, D] -> [B, T, D]."""
    ### BEGIN SOLUTION
    h = gelu(linear(copy_sum(x, group=tp), weight1, bias1))
    y = linear(h, weight2)
    return x + sum_copy(y, group=tp) + bias2
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# The same vector for every token cannot come from x. Which argument has the shape of one vector, [D]? And what does a factor of 1 at 2 ranks and 3 at 4 ranks
# say about p?
# </details>
#
# <details><summary>Hint 2: repairs that are none</summary>
#
# | repair | y | dbias2 |
# |---|---|---|
# | `bias2 / p` in the sum | right | 1/p of what it should be |
# | `- (p - 1) * bias2` behind the sum | right | 2 - p times what it should be |
# | bias2 on the first rank only | right | missing on all others |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_residual_mlp", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "residual_mlp")

# %% [markdown]
# You wrote the parallel form of a transformer: columns and rows, heads, vocabulary, one norm. Each rank holds 1/p of the large weights, and still a whole
# x [B, T, D] with its norms, dropouts and residuals, computed p times over. Lesson 06 cuts that too, and sends no byte more.
