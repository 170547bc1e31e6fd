# %% [markdown]
# # 01 Collectives: exercises
#
# Lesson 01 showed what each collective leaves on every rank, and how each is written from send and receive. Here you
# write five of them and repair a program. After this you can build a ring, a tree and a pairwise exchange for any number
# of ranks, keep each within its budget of bytes, and say why two groups wait for each other.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - `group` is the group to talk in. `dist.get_rank(group)` is this rank's place in it, from 0 to p-1, and
#   `dist.get_world_size(group)` is p. Checks use groups that are smaller than the world: a place in the group is not
#   the rank in the world.
# - Messages are `dist.isend`, `dist.irecv` or `dist.batch_isend_irecv`; or `exchange(outgoing, to, incoming, from_,
#   group=group)` from `tpcourse.wire`, which sends one tensor while it fills another and takes places in the group.
#   `send(x, to=..., group=group)` and `receive(into, from_=..., group=group)` do one half of it. `dist.isend` and
#   `dist.irecv` take ranks of the world; their `group_dst=` and `group_src=` are places in the group.
# - A check runs your function on groups of 2, 3 and 4 ranks where there are as many, with new random inputs each
#   time. It compares the values with the one-device answer, and the messages in the ledger with the budget. What your
#   function prints is shown if its check fails, the last lines of it; or call it in a cell of your own.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Ring all-gather
# Difficulty 1 of 3 · 15 minutes · uses `exchange`
#
# Write `ring_all_gather(piece, group)`. Each rank has a `piece` of shape [n/p], equally long on all ranks, and returns
# all pieces in the order of the ranks, shape [n]. Every message goes to the same neighbour, and a rank passes on only the
# piece that has just arrived.
#
# Budget: p-1 messages of n/p elements for each rank, (p-1)/p of the bytes of the result.

# %% nbgrader={"grade": false, "grade_id": "ring_all_gather", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    """All ranks' pieces in rank order: [n/p] -> [n]."""
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_empty(p, len(piece))  # [p, n/p], one row per rank
    result[rank] = piece
    for step in range(p - 1):
        outgoing, incoming = result[(rank - step) % p], result[(rank - step - 1) % p]
        exchange(outgoing, (rank + 1) % p, incoming, (rank - 1) % p, group=group)
    return result.flatten()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Everybody sends to the right and receives from the left, at the same time. What arrives in one step is what you send in the
# next. After p-1 steps each piece has passed every rank.
# </details>
#
# <details><summary>Hint 2: who has what, for 3 ranks with pieces a, b, c</summary>
#
# | step | rank 0 sends, receives | rank 1 sends, receives | rank 2 sends, receives |
# |---|---|---|---|
# | 0 | a, c | b, a | c, b |
# | 1 | c, b | a, c | b, a |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# rank, p = dist.get_rank(group), dist.get_world_size(group)
# result = piece.new_empty(p, len(piece))  # one row for each rank's piece
# result[rank] = piece
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ring_all_gather", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ring_all_gather")

# %% [markdown]
# ## 2. Ring reduce-scatter
# Difficulty 2 of 3 · 20 minutes · uses exercise 1
#
# Write `ring_reduce_scatter(x, group)`. Each rank has an `x` of shape [n], where p divides n; chunk r is its r-th part of n/p
# elements. Rank r returns the sum of all ranks' chunk r, shape [n/p], in a tensor of its own. `x` stays as it is.
#
# Budget: p-1 messages of n/p elements for each rank, (p-1)/p of the bytes of x, all to the same neighbour.

# %% nbgrader={"grade": false, "grade_id": "ring_reduce_scatter", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def ring_reduce_scatter(x, group):
    """Rank r's chunk of the sum over ranks: [n] -> [n/p]."""
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    partial = x.clone().view(p, -1)  # [p, n/p], sums so far
    for step in range(p - 1):
        outgoing, mine = partial[(rank - step - 1) % p], partial[(rank - step - 2) % p]
        received = torch.empty_like(mine)
        exchange(outgoing, (rank + 1) % p, received, (rank - 1) % p, group=group)
        mine += received
    return partial[rank].clone()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Now sums travel. The sum of chunk r starts on the rank to the right of r, goes once round the ring, and every rank adds its own
# chunk r before it passes the sum on. The last to add is rank r.
# </details>
#
# <details><summary>Hint 2: which chunk, for 3 ranks</summary>
#
# | step | rank 0 sends, adds to | rank 1 sends, adds to | rank 2 sends, adds to |
# |---|---|---|---|
# | 0 | chunk 2, chunk 1 | chunk 0, chunk 2 | chunk 1, chunk 0 |
# | 1 | chunk 1, chunk 0 | chunk 2, chunk 1 | chunk 0, chunk 2 |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# rank, p = dist.get_rank(group), dist.get_world_size(group)
# partial = x.clone().view(p, -1)  # row c: the sum of chunk c as far as this rank knows it
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ring_reduce_scatter", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ring_reduce_scatter")

# %% [markdown]
# ## 3. Ring all-reduce, any length
# Difficulty 3 of 3 · 25 minutes · uses exercises 1 and 2
#
# Write `ring_all_reduce(x, group)`. Each rank has an `x` of shape [n] and returns the sum over all ranks, shape [n]; `x` stays as it
# is. Here n is any length from 1 on: p need not divide it, and it may be smaller than p.
#
# Budget: 2(p-1) messages for each rank, all to the same neighbour, and in all at most 2(p-1) chunks of ceil(n/p) elements, which is
# 2(p-1)/p of the bytes of x where p divides n.

# %% nbgrader={"grade": false, "grade_id": "ring_all_reduce", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def ring_all_reduce(x, group):
    """The sum over ranks, for any length: [n] -> [n]."""
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % p, (rank - 1) % p
    total = x.clone()
    chunks = total.tensor_split(p)  # views; lengths differ by one at most, some may be empty
    for step in range(p - 1):  # reduce-scatter: add what arrives
        outgoing, mine = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        received = torch.empty_like(mine)
        exchange(outgoing, right, received, left, group=group)
        mine += received
    for step in range(p - 1):  # all-gather: copy what arrives
        outgoing, mine = chunks[(rank - step + 1) % p], chunks[(rank - step) % p]
        exchange(outgoing, right, mine, left, group=group)
    return total
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# First a reduce-scatter, after which each rank has the complete sum of one chunk; then an all-gather of those sums. The second
# phase must start with the chunk that the first phase completed.
# </details>
#
# <details><summary>Hint 2: chunks of 7 elements on 3 ranks</summary>
#
# | cut by | chunk 0 | chunk 1 | chunk 2 |
# |---|---|---|---|
# | `x.tensor_split(3)` | 3 | 2 | 2 |
# | padding to 9, `view(3, -1)` | 3 | 3 | 1 and 2 of padding |
# | `x.view(3, -1)` | an error | | |
# | `len(x) // 3` each | 2 | 2 | 2, and 1 element is in no chunk |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# rank, p = dist.get_rank(group), dist.get_world_size(group)
# total = x.clone()
# chunks = total.tensor_split(p)  # views: what is added to a chunk is added to total
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_ring_all_reduce", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "ring_all_reduce")

# %% [markdown]
# ## 4. Tree broadcast, any root
# Difficulty 2 of 3 · 20 minutes · uses `send` and `receive`
#
# Write `tree_broadcast(x, root, group)`. Each rank has an `x` of shape [n]; `root` is a place in the group. Every rank returns the
# root's `x`. On ranks other than the root, what `x` holds before is of no use, and may be overwritten. Any p, also one that is no
# power of two.
#
# Budget: every rank but the root receives once, and all is done in ceil(log2 p) steps; in a step a rank sends one message at most.

# %% nbgrader={"grade": false, "grade_id": "tree_broadcast", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
from tpcourse.wire import receive, send


def tree_broadcast(x, root, group):
    """The root's x on every rank, in ceil(log2 p) steps: [n] -> [n]."""
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    v = (rank - root) % p  # counted from the root, which is 0
    result, distance = x.clone(), 1
    while distance < p:
        if v < distance and v + distance < p:
            send(result, to=(rank + distance) % p, group=group)
        elif distance <= v < 2 * distance:
            receive(result, from_=(rank - distance) % p, group=group)
        distance *= 2
    return result
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Whoever has x passes it on in every step, so the number of ranks that have it doubles: 1, 2, 4, ... Count ranks from the root,
# v = (rank - root) mod p, and the root is always 0.
# </details>
#
# <details><summary>Hint 2: who sends to whom, counted from the root, for 5 ranks</summary>
#
# | distance | messages v -> v |
# |---|---|
# | 1 | 0 -> 1 |
# | 2 | 0 -> 2, 1 -> 3 |
# | 4 | 0 -> 4; 1 has nobody left |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# rank, p = dist.get_rank(group), dist.get_world_size(group)
# v = (rank - root) % p
# result, distance = x.clone(), 1
# while distance < p:
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_tree_broadcast", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "tree_broadcast")

# %% [markdown]
# ## 5. Pairwise all-to-all, uneven pieces
# Difficulty 2 of 3 · 20 minutes · uses `exchange`
#
# Write `pairwise_all_to_all(pieces, sizes, group)`. `pieces` is a list of p tensors: `pieces[q]`, one-dimensional, is for rank q. All
# lengths differ. `sizes[q]` is the length of what rank q has for this rank. Return the list of p tensors that are for this rank, the one
# from rank q in place q, the rank's own piece among them, each in memory of its own.
#
# Budget: p-1 messages for each rank, each piece for another rank sent once and straight to it.

# %% nbgrader={"grade": false, "grade_id": "pairwise_all_to_all", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def pairwise_all_to_all(pieces, sizes, group):
    """What each rank has for this one: p of [length] -> p of [sizes[q]]."""
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    received = [pieces[rank].new_empty(size) for size in sizes]
    received[rank].copy_(pieces[rank])
    for step in range(1, p):
        right, left = (rank + step) % p, (rank - step) % p
        exchange(pieces[right], right, received[left], left, group=group)
    return received
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# In step s everybody sends to the rank s places to the right. Then everybody is sent to by the rank s places to the left: no
# rank is busy with two others at once, for every p.
# </details>
#
# <details><summary>Hint 2: lengths on rank 1 of 3</summary>
#
# | step | sends | of length | receives from | into a tensor of length |
# |---|---|---|---|---|
# | 1 | pieces[2] | len(pieces[2]) | rank 0 | sizes[0] |
# | 2 | pieces[0] | len(pieces[0]) | rank 2 | sizes[2] |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# rank, p = dist.get_rank(group), dist.get_world_size(group)
# received = [pieces[rank].new_empty(size) for size in sizes]
# received[rank].copy_(pieces[rank])
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_pairwise_all_to_all", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "pairwise_all_to_all")

# %% [markdown]
# ## 6. Bug hunt: two groups that wait for each other
# Difficulty 2 of 3 · 15 minutes · uses lesson 00's hang reports
#
# This function worked on one rank. On a grid of ranks, where each rank is in one group `tp` and one group `dp`, it sometimes never ends. Each rank
# starts with whatever it has first: `gradient_first` is true on a rank whose gradient was ready before its activation.

# %% [markdown]
# ```python
# def two_groups(activation, gradient, gradient_first, tp, dp):
#     if gradient_first:
#         dist.all_reduce(gradient, group=dp)
#         dist.all_reduce(activation, group=tp)
#     else:
#         dist.all_reduce(activation, group=tp)
#         dist.all_reduce(gradient, group=dp)
#     return activation, gradient
# ```
#
# Repair it: return the `activation` summed over `tp` and the `gradient` summed over `dp`. The arguments may be changed in place. To see the
# fault first, copy the function into the answer as it is, and run the check: it takes five seconds, and the report says who waits for whom.
#
# Budget: one `dist.all_reduce` on `tp` and one on `dp`, begun in the same order on every rank, both waited
# for before you return.

# %% nbgrader={"grade": false, "grade_id": "two_groups", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def two_groups(activation, gradient, gradient_first, tp, dp):
    """The activation summed over tp, the gradient over dp, whichever was ready first."""
    ### BEGIN SOLUTION
    dist.all_reduce(activation, group=tp)
    dist.all_reduce(gradient, group=dp)
    return activation, gradient
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A group's sum ends when all its ranks have called it. Draw the four ranks of a grid, and an arrow from each rank to the rank it waits for: if the
# arrows close a circle, nobody ever goes on.
# </details>
#
# <details><summary>Hint 2: four ranks, tp = {0, 1} and {2, 3}, dp = {0, 2} and {1, 3}</summary>
#
# | rank | gradient_first | calls first on | waits for |
# |---|---|---|---|
# | 0 | no | tp | 1 |
# | 1 | yes | dp | 3 |
# | 2 | yes | dp | 0 |
# | 3 | no | tp | 2 |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_two_groups", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "two_groups")

# %% [markdown]
# You wrote five collectives from messages, each within its budget, and saw that a program can be right on each rank and still wait for ever. All of them
# move tensors; none of them says how long that takes. Send a piece of a thousand elements as a thousand messages of one: the
# same bytes, and a thousand times the messages. Why does a budget count both? Lesson 02 puts a price on each.
