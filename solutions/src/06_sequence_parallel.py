# %% [markdown]
# # 06 Sequence parallel: exercises
#
# Lesson 06 gave each rank T/p of the tokens wherever a token is worked on alone, and gathered them only in front of split weights. Here you
# write both ends of that, a whole block between them, and repair what the cut does to gradients. After this you can add sequence
# parallelism to a tensor-parallel model and say what it sends, what it keeps, and which gradients it leaves unfinished.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - Shapes are [B, T, D]; the tokens lie along dim 1. In exercises 1 to 4 p divides T.
# - `group` is the group to work in: `dist.get_world_size(group)` is p, `dist.get_rank(group)` is r. It may be smaller than the world.
# - The check calls your function, then backward with a random dy, and compares y, dx and the gradient of every weight with one device in
#   float64. Then it compares the calls in the ledger with the budget. It does so on groups of 2, 3 and 4 ranks where there are as many.
# - In the budgets n is the bytes of a whole [B, T, D]. An all-gather or a reduce-scatter of it sends (p-1)/p n a rank, an all-reduce twice that.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# What the exercises use, on every rank. Exercise 1 writes two of the pairs of `conjugates` itself.

# %%
# %%px
from tpcourse import conjugates, wire
from tpcourse.dims import split_sizes

# %% [markdown]
# ## 1. Enter and leave
# Difficulty 2 of 3 · 20 minutes · uses `torch.autograd.Function`, `dist.all_gather`
#
# `x` [B, T, D] is the same on every rank. `Enter` takes this rank's tokens [B, T/p, D], `norm` works on them, and `Leave` brings all tokens to
# every rank again, [B, T, D]. All ranks then go on with the same y, so its gradient is the same on every rank too. Write all four methods; no pairs
# of `tpcourse.conjugates` here.
#
# Budget: one all-gather forward and one backward, (p-1)/p n bytes each. `norm` keeps its input for backward, and that keeps no more than
# this rank's tokens alive, counted by storage: a slice of x would keep all of x.

# %% nbgrader={"grade": false, "grade_id": "enter_and_leave", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
class Enter(torch.autograd.Function):
    """[B, T, D], equal on every rank -> this rank's tokens [B, T/p, D]."""

    @staticmethod
    def forward(ctx, x, group):
        ### BEGIN SOLUTION
        ctx.group = group
        return x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].clone()  # a slice would keep all of x alive
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        return Leave.apply(dy, ctx.group), None
        ### END SOLUTION


class Leave(torch.autograd.Function):
    """This rank's tokens [B, T/p, D] -> all tokens [B, T, D] on every rank."""

    @staticmethod
    def forward(ctx, x, group):
        ### BEGIN SOLUTION
        ctx.group = group
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        return Enter.apply(dy, ctx.group), None
        ### END SOLUTION


def enter_and_leave(x, norm, group):
    """norm(x), with each rank's norm working on its own tokens."""
    return Leave.apply(norm(Enter.apply(x, group)), group)


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Enter and Leave are each other's backward. What one does to y, the other does to the gradient.
# </details>
#
# <details><summary>Hint 2: shapes</summary>
#
# | | forward | backward |
# |---|---|---|
# | Enter | [B, T, D] -> [B, T/p, D], a cut | [B, T/p, D] -> [B, T, D], a gather |
# | Leave | [B, T/p, D] -> [B, T, D], a gather | [B, T, D] -> [B, T/p, D], a cut |
#
# `backward` returns one gradient for each argument of `forward` after `ctx`: None for the group.
# </details>
#
# <details><summary>Hint 3: the gather</summary>
#
# ```python
# pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
# dist.all_gather(pieces, x.contiguous(), group=group)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_enter_and_leave", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "enter_and_leave")

# %% [markdown]
# ## 2. A whole block
# Difficulty 2 of 3 · 20 minutes · uses the pairs of `tpcourse.conjugates`
#
# `x` [B, T/p, D] is this rank's tokens. Write the block: norm, attention, residual, norm, MLP, residual, with both norms, both residuals and both
# biases on this rank's tokens only.
#
# | part of `block` | shapes |
# |---|---|
# | `norm1(x)`, `norm2(x)` | any tokens, each alone |
# | `attention(h)`, `mlp(h)` | all tokens [B, T, D] -> this rank's part of a sum over the ranks, [B, T, D] |
# | `attention_bias`, `mlp_bias` | [D], added once to each token |
#
# Budget: two all-gathers and two reduce-scatters forward, the same backward. That is the volume of the four all-reduces of tensor parallelism.

# %% nbgrader={"grade": false, "grade_id": "sequence_block", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def sequence_block(x, block, group):
    """This rank's tokens in, this rank's tokens out: [B, T/p, D] -> [B, T/p, D]."""
    ### BEGIN SOLUTION
    h = conjugates.gather_scatter_sum(block.norm1(x), group=group, dim=1)  # [B, T, D]
    a = conjugates.scatter_sum_gather(block.attention(h), group=group, dim=1)  # [B, T/p, D]
    x = x + a + block.attention_bias
    h = conjugates.gather_scatter_sum(block.norm2(x), group=group, dim=1)
    return x + conjugates.scatter_sum_gather(block.mlp(h), group=group, dim=1) + block.mlp_bias
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# In front of split weights gather, behind them scatter the sum. Between the two a rank holds its own tokens, and needs nobody.
# </details>
#
# <details><summary>Hint 2: which gather, and its shapes</summary>
#
# | where | forward | backward |
# |---|---|---|
# | in front of `attention`, `mlp` | gather [B, T/p, D] -> [B, T, D] | each rank's weights send back a part of the gradient: sum, and scatter |
# | behind them | sum, and scatter [B, T, D] -> [B, T/p, D] | gather |
# </details>
#
# <details><summary>Hint 3: the first line</summary>
#
# ```python
# h = conjugates.gather_scatter_sum(block.norm1(x), group=group, dim=1)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_sequence_block", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "sequence_block")

# %% [markdown]
# ## 3. Bug hunt: weights that drift apart
# Difficulty 2 of 3 · 20 minutes · uses exercise 2
#
# The loss falls, y and dx are right to the last digit, and after a thousand steps some weights that should be equal on all ranks are not. This
# is the forward pass, and nothing in it is wrong: exercise 2, a gather, and a last norm.

# %%
# %%px
def block_and_norm(x, block, group):
    """[B, T/p, D] -> [B, T, D], the same on every rank."""
    h = conjugates.gather_scatter_sum(block.norm1(x), group=group, dim=1)
    a = conjugates.scatter_sum_gather(block.attention(h), group=group, dim=1)
    x = x + a + block.attention_bias
    h = conjugates.gather_scatter_sum(block.norm2(x), group=group, dim=1)
    x = x + conjugates.scatter_sum_gather(block.mlp(h), group=group, dim=1) + block.mlp_bias
    return block.norm3(conjugates.gather_split(x, group=group, dim=1))


# %% [markdown]
# And this is the step. `dy` [B, T, D] is the same on every rank.
#
# ```python
# def block_gradients(x, block, dy, group):
#     (block_and_norm(x, block, group) * dy).sum().backward()
#     return [w.grad for w in block.parameters()]
# ```
#
# | weights, by `block.named_parameters()` | on each rank |
# |---|---|
# | `attention_bias`, `mlp_bias`, `norm1.scale`, `norm2.scale`, `norm3.scale` | whole, [D] |
# | `qkv.weight`, `qkv.bias`, `out.weight` | this rank's head |
# | `up.weight`, `up.bias`, `down.weight` | this rank's hidden units |
#
# Repair `block_gradients`: after it every gradient is one device's, or this rank's part of it. Decide for each weight which tokens it met here.
#
# Budget: beside the block's own calls one `dist.all_reduce`, of no more numbers than are unfinished.

# %% nbgrader={"grade": false, "grade_id": "block_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def block_gradients(x, block, dy, group):
    """The gradients of all weights, in the order of block.parameters(), each of all tokens."""
    ### BEGIN SOLUTION
    (block_and_norm(x, block, group) * dy).sum().backward()
    partial = [block.norm1.scale.grad, block.attention_bias.grad, block.norm2.scale.grad, block.mlp_bias.grad]
    flat = torch.cat(partial)  # [4 D]
    dist.all_reduce(flat, group=group)
    for gradient, total in zip(partial, flat.split([g.numel() for g in partial])):
        gradient.copy_(total)
    return [w.grad for w in block.parameters()]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A gradient is a sum over tokens. It is finished where a rank's copy of the weight met all tokens, and partial where it met T/p of them.
# </details>
#
# <details><summary>Hint 2: three kinds</summary>
#
# | weight | tokens it met | gradient |
# |---|---|---|
# | split | all, behind a gather | this rank's part, finished |
# | whole, before a gather or behind a scatter-sum | T/p | partial: sum over the ranks |
# | whole, behind the last gather | all, the same on every rank | finished |
# </details>
#
# <details><summary>Hint 3: one call</summary>
#
# `flat = torch.cat(partial)`, one `dist.all_reduce(flat, group=group)`, and a piece of `flat` back into each gradient with `copy_`.
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_block_gradients", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "block_gradients")

# %% [markdown]
# ## 4. Gather again
# Difficulty 3 of 3 · 30 minutes · uses `torch.autograd.Function`
#
# `x` [B, T/p, D] is this rank's tokens, `weight` [F/p, D] and `bias` [F/p] its rows. The product needs all tokens: $y = x W^\top + b$, [B, T, F/p].
# Backward needs them again for dW, and keeping them would undo what sequence parallelism saved. Keep the piece, and gather twice.
#
# Budget: one all-gather forward; one all-gather and one reduce-scatter backward. Between the two at most the bytes of the piece are held, counted
# by storage; weights and y do not count.

# %% nbgrader={"grade": false, "grade_id": "regathered_column", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
class RegatheredColumn(torch.autograd.Function):
    """[B, T/p, D] -> [B, T, F/p]; keeps [B, T/p, D]."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return wire.all_gather(x, group=group, dim=1) @ weight.T + bias
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        x, weight = ctx.saved_tensors
        whole = wire.all_gather(x, group=ctx.group, dim=1)  # [B, T, D]
        dweight = dy.flatten(0, 1).T @ whole.flatten(0, 1)  # [F/p, D]
        dx = wire.reduce_scatter(dy @ weight, group=ctx.group, dim=1)  # [B, T/p, D]
        return dx, dweight, dy.sum((0, 1)), None
        ### END SOLUTION


def regathered_column(x, weight, bias, group):
    """This rank's columns of the product with all tokens."""
    return RegatheredColumn.apply(x, weight, bias, group)


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# What forward gathered is gone when forward returns, unless somebody keeps it. `ctx.save_for_backward` keeps what you give it: give it the piece.
# </details>
#
# <details><summary>Hint 2: backward's shapes</summary>
#
# | | product | shape | then |
# |---|---|---|---|
# | dbias | sum of dy over B and T | [F/p] | |
# | dweight | $dy^\top x$, with x of all tokens | [F/p, D] | |
# | dx | $dy\, W$ | [B, T, D], partial: only this rank's columns | reduce-scatter to [B, T/p, D] |
#
# `wire.all_gather` and `wire.reduce_scatter` take `group=` and `dim=1`, and return a new tensor.
# </details>
#
# <details><summary>Hint 3: the first lines of backward</summary>
#
# ```python
# x, weight = ctx.saved_tensors
# whole = wire.all_gather(x, group=ctx.group, dim=1)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_regathered_column", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "regathered_column")

# %% [markdown]
# ## 5. Any number of tokens
# Difficulty 3 of 3 · 30 minutes · uses exercise 2, `tpcourse.dims.split_sizes`
#
# Here p does not divide T, and a rank may have no token at all. `x` and `target` [B, T, D] are the same on every rank. Cut both, compute
# y = x + MLP(norm(x)) for this rank's tokens, and return the mean squared error over all elements of **all** tokens, the same on every rank.
# `mlp.norm(x)` and `mlp.bias` [D] are as in exercise 2; `mlp.work(h)` is this rank's part of the sum, [B, T, D] -> [B, T, D].
#
# Budget: one all-gather, one reduce-scatter and one number forward; two all-gathers and one reduce-scatter backward. Pieces may be padded to
# the longest.

# %% nbgrader={"grade": false, "grade_id": "uneven_tokens", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def uneven_tokens(x, mlp, target, group):
    """The mean squared error of x + MLP(norm(x)) over all tokens, for any T."""
    ### BEGIN SOLUTION
    sizes = split_sizes(x.shape[1], dist.get_world_size(group))
    count, target = target.numel(), target.split(sizes, dim=1)[dist.get_rank(group)]
    x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)  # [B, T_r, D]
    h = conjugates.gather_scatter_sum(mlp.norm(x), group=group, dim=1, sizes=sizes)  # [B, T, D]
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1, sizes=sizes) + mlp.bias
    return conjugates.sum_copy(((y - target) ** 2).sum() / count, group=group)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A mean over unequal shares is the sum of their sums over the count of all. Every rank knows T, so only the sums have to travel.
# </details>
#
# <details><summary>Hint 2: ten tokens on four ranks</summary>
#
# | rank | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | `split_sizes(10, 4)` | 3 | 3 | 2 | 2 |
# | padded to the longest | 3 | 3 | 3 | 3 |
#
# The pairs of `tpcourse.conjugates` pad and cut by themselves if you give them `sizes=`. `sum_copy` adds up the loss.
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# sizes = split_sizes(x.shape[1], dist.get_world_size(group))
# x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_uneven_tokens", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "uneven_tokens")

# %% [markdown]
# You wrote sequence parallelism: each token's own work is done once, its activations are held once, and the bytes sent are those of tensor
# parallelism. Attention still sees all T tokens on every rank: a sequence too long for that needs lesson 09. And where several such groups train side
# by side, every one holds the same weights and the same moments of Adam again. Lesson 07 takes those copies apart.
