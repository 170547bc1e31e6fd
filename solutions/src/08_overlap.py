# %% [markdown]
# # 08 Overlap: exercises
#
# Lesson 08 let messages travel while products run. Here you write it: a gather under a product that does not need it, both rings, a backward in the right
# order; and you find out why one that looks like overlap hides nothing.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - `tp` is the group to work in. `dist.get_rank(tp)` is this rank's place r in it, `dist.get_world_size(tp)` is p. It may be smaller than the
#   world, so every call needs `group=tp`.
# - T tokens are cut into p pieces of T/p, piece r for rank r; p divides T. Weights are [out, in], and y = x W^T.
# - A check runs your function on groups of 2, 3 and 4 ranks where there are as many, with new float64 inputs each time. It compares values with one
#   device, and then looks at the **order** in which products, calls and waits begin: never at the clock of a CPU. It also sees when memory is read before
#   what comes into it was waited for, or written while it is being sent, however lucky the values are.
# - On GPUs it measures E as well, at a size at which there is much to hide, in float64 (section 2 of the lesson says why). On a CPU that line stays open.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# What the exercises use, on every rank. `all_gather_single(whole, piece, ...)` fills `whole` [p n, ..] from all pieces [n, ..], and
# `reduce_scatter_single(piece, whole, ...)` fills `piece` with this rank's part of the sum. With `async_op=True` they return a work at once.
# `pass_on` begins to send a tensor to the right, rank r + 1, and to receive another one from the left; wait for all works that it returns.

# %%
# %%px
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import all_gather_single, reduce_scatter_single


def pass_on(outgoing, incoming, tp):
    """Begin to send to the right neighbour and to receive from the left one: a list of works."""
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    right, left = (dist.get_global_rank(tp, (r + way) % p) for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, tp)
    return dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, incoming, left, tp)])


# %% [markdown]
# ## 1. A gather under independent work
# Difficulty 1 of 3 · 10 minutes · uses `all_gather_single`, `work.wait`
#
# Write `gathered_meanwhile(piece, x, weight, tp)`. It returns all ranks' pieces, [n, D] -> [p n, D], and the product of x [M, K] with weight [N, K], which has
# nothing to do with them.
#
# Budget: one `all_gather`. It has begun, and was not waited for, when the product begins; and it was waited for when the function returns.

# %% nbgrader={"grade": false, "grade_id": "gathered_meanwhile", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def gathered_meanwhile(piece, x, weight, tp):
    """All pieces, and x W^T: [n, D] -> [p n, D]; [M, K], [N, K] -> [M, N]."""
    ### BEGIN SOLUTION
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])
    work = all_gather_single(whole, piece, group=tp, async_op=True)
    y = linear(x, weight)
    work.wait()
    return whole, y
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A work is a promise. Begin what needs no hands, then use your hands, then ask for what was promised.
# </details>
#
# <details><summary>Hint 2: four lines</summary>
#
# | line | what |
# |---|---|
# | 1 | room for the result, [p n, D] |
# | 2 | begin the gather, keep its work |
# | 3 | multiply |
# | 4 | wait |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_gathered_meanwhile", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "gathered_meanwhile")

# %% [markdown]
# ## 2. A ring, and a product in every step
# Difficulty 3 of 3 · 30 minutes · uses `pass_on`, `linear`
#
# Now the product needs what is gathered, but a row of y needs only its own token. Write `ring_gather_product(x, weight, bias, tp)`: x [T/p, D] has this rank's
# tokens, weight [N, D] and bias [N] its columns. Return y [T, N], all ranks' tokens in rank order. In each of p steps multiply the piece that is here; in
# all steps but the last, pass it on meanwhile. `dist.isend` and `dist.irecv` take ranks of the world; `pass_on` translates.
#
# Budget: p - 1 messages of [T/p, D]. The send of a piece begins before its product; what comes is waited for behind it.

# %% nbgrader={"grade": false, "grade_id": "ring_gather_product", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def ring_gather_product(x, weight, bias, tp):
    """All ranks' tokens times this rank's columns: [T/p, D], [N, D], [N] -> [T, N]."""
    ### BEGIN SOLUTION
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    y = x.new_empty(p, len(x), len(weight))
    now = x
    for step in range(p):
        coming, works = torch.empty_like(x), []
        if step < p - 1:
            works = pass_on(now, coming, tp)
        y[(r - step) % p] = linear(now, weight, bias)
        for work in works:
            work.wait()
        now = coming
    return y.flatten(0, 1)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A rank can do two things with a piece at once: multiply it, and send it on. Both only read it.
# </details>
#
# <details><summary>Hint 2: four ranks, seen from rank 1</summary>
#
# | step | multiplies the tokens of | which leave for rank 2 | while these come from rank 0 |
# |---|---|---|---|
# | 0 | 1 | yes | 0 |
# | 1 | 0 | yes | 3 |
# | 2 | 3 | yes | 2 |
# | 3 | 2 | no | |
# </details>
#
# <details><summary>Hint 3: inside the loop</summary>
#
# ```python
# coming, works = torch.empty_like(x), []  # a new one in each step: the last one is still being sent on
# if step < p - 1:
#     works = pass_on(now, coming, tp)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ring_gather_product", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ring_gather_product")

# %% [markdown]
# ## 3. A product, and a ring that adds
# Difficulty 3 of 3 · 30 minutes · uses `pass_on`, `linear`
#
# The other end of the MLP. Write `ring_product_scatter(x, weight, tp)`: x [T, K] has all tokens, but only this rank's columns, and so has weight [D, K]. Return
# this rank's tokens of the sum over ranks of x W^T, [T/p, D]. The sum for rank c starts on rank c + 1 and goes round to the right; each rank adds its own product
# for c's tokens. Rank r therefore multiplies the tokens of r - 1 first, and its own last. `dist.isend` and `dist.irecv` take ranks of the world;
# `pass_on` translates.
#
# Budget: p - 1 messages of [T/p, D]. A sum is on its way while the next product runs, and is waited for behind that.

# %% nbgrader={"grade": false, "grade_id": "ring_product_scatter", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def ring_product_scatter(x, weight, tp):
    """This rank's tokens of the sum of all products: [T, K], [D, K] -> [T/p, D]."""
    ### BEGIN SOLUTION
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    pieces, works, coming = x.chunk(p), [], None
    for step in range(p):
        part = linear(pieces[(r - 1 - step) % p], weight)
        for work in works:
            work.wait()
        if step > 0:
            part += coming
        if step < p - 1:
            coming = torch.empty_like(part)
            works = pass_on(part, coming, tp)
    return part
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# The product for the tokens of c needs nothing that travels. Only the addition does. So multiply first, and then ask whether the sum has come.
# </details>
#
# <details><summary>Hint 2: four ranks, seen from rank 1</summary>
#
# | step | multiplies the tokens of | adds what came of ranks | and sends it on |
# |---|---|---|---|
# | 0 | 0 | | yes |
# | 1 | 3 | 0 | yes |
# | 2 | 2 | 3 and 0 | yes |
# | 3 | 1 | 2, 3 and 0 | no: it is done |
# </details>
#
# <details><summary>Hint 3: a step</summary>
#
# ```python
# part = linear(pieces[(r - 1 - step) % p], weight)  # a new tensor: the last one is still being sent
# for work in works:  # of the step before
#     work.wait()
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ring_product_scatter", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ring_product_scatter")

# %% [markdown]
# ## 4. Backward, in the order that hides both
# Difficulty 2 of 3 · 20 minutes · uses `all_gather_single`, `reduce_scatter_single`
#
# The backward of exercise 2, of a forward that kept only its own tokens: x [T/p, D]. Write `ordered_backward(dy, x, weight, tp)`; dy [T, N] has all tokens. Return
# dx [T/p, D], this rank's tokens of the sum over ranks of dy W, and dweight [N, D] = dy^T x, with x of all tokens. Two products, two collectives: find the
# order in which each collective runs under a product that does not need it.
#
# Budget: one `all_gather` of x, one `reduce_scatter` of dx, each under way while one of the products runs.

# %% nbgrader={"grade": false, "grade_id": "ordered_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def ordered_backward(dy, x, weight, tp):
    """This rank's tokens of dx, its rows of dweight: [T, N], [T/p, D], [N, D] -> [T/p, D], [N, D]."""
    ### BEGIN SOLUTION
    whole = x.new_empty(len(dy), x.shape[1])
    gathering = all_gather_single(whole, x, group=tp, async_op=True)
    partial = dy @ weight
    dx = torch.empty_like(x)
    scattering = reduce_scatter_single(dx, partial, group=tp, async_op=True)
    gathering.wait()
    dweight = dy.T @ whole
    scattering.wait()
    return dx, dweight
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Draw four boxes, and an arrow from each to what needs it. A collective hides under a product if no arrow leads from one to the other.
# </details>
#
# <details><summary>Hint 2: who needs what</summary>
#
# | box | needs | is needed by |
# |---|---|---|
# | gather x | | dweight |
# | product dy W | | the scatter-sum of dx |
# | scatter-sum of dx | dy W | |
# | product dy^T x | all of x | |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ordered_backward", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ordered_backward")

# %% [markdown]
# ## 5. Bug hunt: why does this overlap hide nothing?
# Difficulty 2 of 3 · 20 minutes · uses `reduce_scatter_single`
#
# A product + scatter-sum in pieces, with `async_op=True` and a `wait` in the last line. Its values are right, and on two GPUs it takes as long as without
# pieces:
#
# ```python
# def pieced_product_scatter(x, weight, num_pieces, tp):
#     part = x.new_zeros(len(x), len(weight))
#     for a, b in zip(x.chunk(num_pieces, 1), weight.chunk(num_pieces, 1)):
#         part += linear(a, b)  # piece by piece
#     mine = part.new_empty(len(x) // dist.get_world_size(tp), len(weight))
#     work = reduce_scatter_single(mine, part, group=tp, async_op=True)
#     work.wait()
#     return mine
# ```
#
# Shapes are those of exercise 3; `num_pieces` divides T/p, K and D. Say why nothing can leave early. Then repair it.
#
# Budget: `num_pieces` products and as many `reduce_scatter`, together the bytes of one. Each is on its way while the next product runs.

# %% nbgrader={"grade": false, "grade_id": "pieced_product_scatter", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def pieced_product_scatter(x, weight, num_pieces, tp):
    """This rank's tokens of the sum of all products: [T, K], [D, K] -> [T/p, D]."""
    ### BEGIN SOLUTION
    p, mine, works = dist.get_world_size(tp), [], []
    for piece in x.view(p, -1, x.shape[1]).chunk(num_pieces, 1):  # some tokens of every rank
        part = linear(piece, weight).flatten(0, 1)
        mine.append(part.new_empty(len(part) // p, len(weight)))
        works.append(reduce_scatter_single(mine[-1], part, group=tp, async_op=True))
    for work in works:
        work.wait()
    return torch.cat(mine)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Take one number of the result. After which product is it complete?
# </details>
#
# <details><summary>Hint 2: three dims to cut</summary>
#
# | cut along | a number is complete after | sent in all |
# |---|---|---|
# | K, which is added over | the last product | once, at the end; or num_pieces times |
# | D, the weight's rows | its own product | once |
# | T, tokens | its own product | once; and which tokens go to which rank? |
# </details>
#
# <details><summary>Hint 3: tokens of every rank</summary>
#
# A reduce-scatter gives the first T/p rows of what it gets to rank 0, the next to rank 1. `x.view(p, -1, K)` is [p, T/p, K], cut by ranks; cut dim 1 of that, and every
# piece has some tokens of every rank.
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_pieced_product_scatter", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "pieced_product_scatter")

# %% [markdown]
# You wrote all that overlap consists of: begin early, multiply what is here, wait late; in a ring where the product needs what travels, in another order where it
# does not. Values never tell whether it worked, and order is only half of it: the other half is the clock of a GPU. Lesson 09 cuts along tokens for
# good, and sends keys and values round the same ring.
