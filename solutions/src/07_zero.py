# %% [markdown]
# # 07 ZeRO: exercises
#
# Lesson 07 took the copies of data parallelism apart: Adam's states, gradients, weights. Here you write each stage on a flat array. After this
# you can say which rank owns which element, what travels when, what is held at every moment, and how to go on with another number of ranks.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - `dp` is the group to work in. `dist.get_rank(dp)` is this rank's place r in it, `dist.get_world_size(dp)` is p. It may be smaller than the
#   world, so every call needs `group=dp`.
# - A flat array has P elements, and p need not divide P. Every piece has n = ceil(P/p): piece r is elements r n to (r+1) n - 1. Behind element
#   P - 1 is padding, which is zero unless the task says otherwise.
# - Ranks have other examples, and the loss is the mean of their losses: gradients are **averaged** over `dp`.
# - A check runs your function on groups of 2, 3 and 4 ranks where there are as many, with new float64 inputs each time. It compares values with
#   one device, calls with the budget of bytes sent, and memory with the budget of bytes held.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# What the exercises use, on every rank. `all_gather(piece, group=dp)` is [n] -> [p n], and `reduce_scatter(flat, group=dp)` is [p n] -> [n], this
# rank's piece of the sum. `pad(flat, (0, k))` puts k zeros behind a flat array. `all_gather_single` is for exercise 5.

# %%
# %%px
from torch.nn.functional import pad

from tpcourse.wire import all_gather, reduce_scatter
from tpcourse.wire.torch_calls import all_gather_single

# %% [markdown]
# ## 1. Shard the Adam states
# Difficulty 2 of 3 · 20 minutes · uses `torch.optim.AdamW`, `dist.all_reduce`, `all_gather`
#
# Write `sharded_adam(weights, gradient, steps, options, dp)`: stage 1. `weights` [P] are equal on all ranks; `gradient(weights)` returns this
# rank's own gradient [P] there. Take `steps` steps: average the gradient, step **only this rank's piece** with one
# `torch.optim.AdamW([piece], **options)`, give all ranks the new pieces. Return the weights [P]. `weights` may be changed.
#
# Budget: in each step one `all_reduce` of the gradient and one `all_gather` of the pieces. Bytes held: moments of n elements, 2 x 8 n. That all-reduce
# sends more than stage 1 has to: exercise 2 writes the reduce-scatter in its place. One here already is right too.

# %% nbgrader={"grade": false, "grade_id": "sharded_adam", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def sharded_adam(weights, gradient, steps, options, dp):
    """The weights after some steps of which each rank makes 1/p: [P] -> [P]."""
    ### BEGIN SOLUTION
    P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
    n = -(-P // p)
    whole = pad(weights, (0, p * n - P))  # [p n]
    piece = whole[r * n : (r + 1) * n].clone()  # [n]
    adam = torch.optim.AdamW([piece], **options)
    for _ in range(steps):
        g = gradient(whole[:P])
        dist.all_reduce(g, group=dp)
        piece.grad = pad(g / p, (0, p * n - P))[r * n : (r + 1) * n]
        adam.step()
        whole = all_gather(piece, group=dp)
    return whole[:P]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Adam treats each element alone: what it does to element 7 needs the gradient, the moments and the value of element 7. So element 7 can be stepped
# on one rank, if all others hear of its new value before they need it.
# </details>
#
# <details><summary>Hint 2: who has what</summary>
#
# | array | shape | on the ranks |
# |---|---|---|
# | weights, padded | [p n] | equal |
# | gradient, averaged | [P] | equal; a rank needs only its piece (exercise 2) |
# | piece, its gradient, its two moments | [n] | this rank's |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
# n = -(-P // p)  # rounds up
# whole = pad(weights, (0, p * n - P))  # [p n]
# piece = whole[r * n : (r + 1) * n].clone()  # [n]
# adam = torch.optim.AdamW([piece], **options)  # steps piece in place, with piece.grad
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_sharded_adam", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "sharded_adam")

# %% [markdown]
# ## 2. Reduce-scatter the gradients
# Difficulty 2 of 3 · 15 minutes · uses `reduce_scatter`
#
# Each rank needs the averaged gradient of its piece alone: a reduce-scatter, in stage 1 as in stage 2. Stage 2 also lets the rest go. Write
# `scattered_gradients(weights, dp)`. `weights` is a list of parameters after backward, with P elements in all; where backward did not come by, `grad`
# is None and counts as zeros. Lay all gradients end to end, and return this rank's piece [n] of their average. The whole gradient must be gone then.
#
# Budget: one `reduce_scatter` of [p n]. Bytes held at the end: 8 n, the piece.

# %% nbgrader={"grade": false, "grade_id": "scattered_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def scattered_gradients(weights, dp):
    """Piece r of the averaged gradients, which are dropped: a list of parameters -> [n]."""
    ### BEGIN SOLUTION
    p = dist.get_world_size(dp)
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])  # [P]
    for w in weights:
        w.grad = None
    return reduce_scatter(pad(flat / p, (0, -len(flat) % p)), group=dp)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# An all-reduce is a reduce-scatter and an all-gather. The second half brings each rank what others own.
# </details>
#
# <details><summary>Hint 2: what keeps an array alive</summary>
#
# | what | keeps |
# |---|---|
# | a local name | until the function returns |
# | `w.grad` | until it is None, or another tensor |
# | a slice or view, `flat[:n]` | the **whole** array under it |
# </details>
#
# <details><summary>Hint 3: the last line</summary>
#
# ```python
# return reduce_scatter(pad(flat / p, (0, -len(flat) % p)), group=dp)  # -P % p zeros, up to p n
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_scattered_gradients", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "scattered_gradients")

# %% [markdown]
# ## 3. Clip a gradient in pieces
# Difficulty 1 of 3 · 10 minutes · uses `dist.all_reduce`
#
# Write `clipped_piece(piece, P, max_norm, dp)`. `piece` [n] is this rank's piece of an averaged gradient of P elements, in memory that was used
# before: **anything** may be in its padding, NaN too. Return the norm of all P elements as a tensor `[]`, equal on all ranks, and the piece [n] times
# min(1, max_norm / norm). What you leave in the padding does not matter.
#
# Budget: one `all_reduce` of one number.

# %% nbgrader={"grade": false, "grade_id": "clipped_piece", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def clipped_piece(piece, P, max_norm, dp):
    """The norm of the whole gradient, and this rank's piece of the clipped one: [n] -> [], [n]."""
    ### BEGIN SOLUTION
    start = dist.get_rank(dp) * len(piece)
    square = piece[: max(0, P - start)].square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Squares add up, over elements and over ranks. Which elements of this piece are elements of the gradient?
# </details>
#
# <details><summary>Hint 2: five elements on four ranks, n = 2</summary>
#
# | rank | elements | of which are gradients | P - r n |
# |---|---|---|---|
# | 0, 1 | 0, 1 and 2, 3 | both | 5, 3 |
# | 2 | 4, 5 | the first | 1 |
# | 3 | 6, 7 | none | -1 |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_clipped_piece", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "clipped_piece")

# %% [markdown]
# ## 4. Gather a layer, use it, free it
# Difficulty 3 of 3 · 30 minutes · uses exercise 2, `all_gather`
#
# Stage 3. Write `layered_step(x, target, layers, pieces, dp)`. `pieces[l]` [n] is this rank's piece of layer l's `layers[l].size` weights.
# `layer.forward(x, flat)` returns y, `layer.backward(x, flat, dy)` returns dx and dflat; `flat` and dflat are [size], without padding. Go forward; then
# backward from dy = y - target. Return y and the list of averaged gradient pieces [n].
#
# Budget: two `all_gather` and one `reduce_scatter` for each layer. Bytes held when a gather or a layer begins, beside activations and pieces: the gathered
# weights of this one layer; in backward at most two whole gradients more.

# %% nbgrader={"grade": false, "grade_id": "layered_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def layered_step(x, target, layers, pieces, dp):
    """y, and this rank's piece of every layer's averaged gradient: [B, D] -> [B, D], L x [n]."""
    ### BEGIN SOLUTION
    p, inputs, gradients = dist.get_world_size(dp), [], []
    for layer, piece in zip(layers, pieces):
        inputs.append(x)
        whole = all_gather(piece, group=dp)  # [p n]
        x = layer.forward(x, whole[: layer.size])
        del whole
    dy = x - target
    for layer, piece in zip(reversed(layers), reversed(pieces)):
        whole = all_gather(piece, group=dp)
        dy, dflat = layer.backward(inputs.pop(), whole[: layer.size], dy)
        del whole
        dflat = pad(dflat / p, (0, -layer.size % p))
        gradients.append(reduce_scatter(dflat, group=dp))
    return x, gradients[::-1]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Backward needs a layer's input and its weights. The input is small, and nobody else has it: keep it. The weights are large, and the ranks together have
# them: gather them again.
# </details>
#
# <details><summary>Hint 2: a layer's backward</summary>
#
# | step | shape |
# |---|---|
# | gather the piece, cut the padding off | [n] -> [p n] -> [size] |
# | `layer.backward` | [B, D] and [size] |
# | let the gathered array go | |
# | divide by p, pad, reduce-scatter | [size] -> [p n] -> [n] |
# </details>
#
# <details><summary>Hint 3: the first loop</summary>
#
# ```python
# for layer, piece in zip(layers, pieces):
#     inputs.append(x)
#     whole = all_gather(piece, group=dp)  # [p n]
#     x = layer.forward(x, whole[: layer.size])
#     del whole  # or it is there while the next one is gathered
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_layered_step", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "layered_step")

# %% [markdown]
# ## 5. Prefetch one layer
# Difficulty 3 of 3 · 30 minutes · uses exercise 4, `all_gather_single`
#
# Write `prefetched_step(x, target, layers, pieces, dp)`: the same results, but the gather of the layer that is used next **begins** before this layer
# computes, in forward and in backward. `work = all_gather_single(whole, piece, group=dp, async_op=True)` begins to fill `whole` [p n];
# `work.wait()` is for the moment when the layer's turn comes.
#
# Budget: the calls of exercise 4. When a layer begins, its own gather was waited for and the next one's was not. Bytes held when a gather or a layer begins:
# two layers' gathered weights, and what exercise 4 allows beside them.

# %% nbgrader={"grade": false, "grade_id": "prefetched_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def prefetched_step(x, target, layers, pieces, dp):
    """As `layered_step`, with every gather one layer ahead: [B, D] -> [B, D], L x [n]."""
    ### BEGIN SOLUTION
    p, L = dist.get_world_size(dp), len(layers)
    order = [*range(L), *reversed(range(L))]

    def begin(use):
        piece = pieces[order[use]]
        whole = piece.new_empty(p * len(piece))
        return whole, all_gather_single(whole, piece, group=dp, async_op=True)

    inputs, gradients, following = [], [], begin(0)
    for use, number in enumerate(order):
        whole, work = following
        work.wait()
        layer, flat = layers[number], whole[: layers[number].size]  # the use before is let go
        following = begin(use + 1) if use + 1 < 2 * L else None
        if use < L:
            inputs.append(x)
            x = layer.forward(x, flat)
            continue
        if use == L:
            dy = x - target
        dy, dflat = layer.backward(inputs.pop(), flat, dy)
        gradients.append(reduce_scatter(pad(dflat / p, (0, -layer.size % p)), group=dp))
    return x, gradients[::-1]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A step uses 2 L layers, one after the other: 0 .. L-1, then L-1 .. 0. Write that down as one list. Before use k computes, gather k has ended and gather
# k + 1 has begun. In this list backward is nothing special.
# </details>
#
# <details><summary>Hint 2: around one use</summary>
#
# | line | what |
# |---|---|
# | 1 | take `whole` and `work` of this use, which began one use ago |
# | 2 | `work.wait()` |
# | 3 | begin the gather of the next use, and keep what it gives |
# | 4 | compute |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# order = [*range(L), *reversed(range(L))]
#
# def begin(use):
#     piece = pieces[order[use]]
#     whole = piece.new_empty(p * len(piece))
#     return whole, all_gather_single(whole, piece, group=dp, async_op=True)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_prefetched_step", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "prefetched_step")

# %% [markdown]
# ## 6. Four ranks saved, two go on
# Difficulty 2 of 3 · 20 minutes · uses exercise 1
#
# Write `reloaded_adam(read, saved, P, options, dp)`. `saved` ranks saved a flat array of P weights; `read(j)` reads what rank j wrote: `"weight"`,
# `"exp_avg"` and `"exp_avg_sq"`, each [ceil(P/saved)], with anything in the padding, and `"step"`. Cut all three for p ranks, each of which gets at least one weight. Return an
# `AdamW([piece], **options)` that goes on where the others stopped: its states are in `adam.state[piece]`, a dict with those names.
#
# Budget: nothing is sent. A rank reads only files in which its piece lies, each once.

# %% nbgrader={"grade": false, "grade_id": "reloaded_adam", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def reloaded_adam(read, saved, P, options, dp):
    """An AdamW on this rank's piece [n], with the moments and the count of steps that were saved."""
    ### BEGIN SOLUTION
    n, old = -(-P // dist.get_world_size(dp)), -(-P // saved)
    start = dist.get_rank(dp) * n
    end = min(start + n, P)
    arrays = {name: torch.zeros(n, dtype=torch.float64, device=device) for name in ("weight", "exp_avg", "exp_avg_sq")}
    for j in range(start // old, -(-end // old)):
        file, first, last = read(j), max(start, j * old), min(end, (j + 1) * old)
        for name, array in arrays.items():
            array[first - start : last - start] = file[name][first - j * old : last - j * old]
    piece = arrays.pop("weight")
    adam = torch.optim.AdamW([piece], **options)
    adam.state[piece] = {"step": file["step"], **arrays}
    return adam
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Think of the array of P elements that nobody holds. The file of rank j is an interval of it, and so is your piece. Two intervals share an interval, or
# nothing.
# </details>
#
# <details><summary>Hint 2: the same elements, counted in three ways</summary>
#
# | counted from | elements shared with file j |
# |---|---|
# | the array | first = max(start, j old) up to last = min(end, (j + 1) old) |
# | the piece | first - start up to last - start |
# | the file | first - j old up to last - j old |
#
# old is ceil(P/saved), start is r n, and end is r n + n or P, whichever is smaller.
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# n, old = -(-P // dist.get_world_size(dp)), -(-P // saved)
# start = dist.get_rank(dp) * n
# end = min(start + n, P)
# for j in range(start // old, -(-end // old)):  # the files that the piece lies in
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_reloaded_adam", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "reloaded_adam")

# %% [markdown]
# You wrote the three stages of ZeRO: states in pieces, gradients in pieces, weights in pieces that come together a layer at a time, and a checkpoint that does
# not care how many ranks wrote it. Each rank holds 1/p of the model, and sends 3 (p-1)/p P elements a step in place of 2 (p-1)/p P. The gather that begins early is hidden
# only if something else runs meanwhile: lesson 08 measures what is hidden.
