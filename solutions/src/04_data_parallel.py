# %% [markdown]
# # 04 Data parallel: exercises
#
# Lesson 04 averaged the gradients of equal models, first with a call per parameter, then in buckets, then while backward runs. Here
# you write each step of that way. After this you can train on any number of ranks with the weights of one device, and say what
# every step sends.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch`, `dist` and `device` are there already.
# - `model` is a small `torch.nn.Module` in float64, the same on every rank unless the task says otherwise. It computes
#   h = tanh(`enter`(x)), then two branches, tanh(`left`(h)) and tanh(`right`(h)), and `leave` of their product. The branches share one
#   matrix: `model.left.weight is model.right.weight`. Its gradients are `None` when your function is called.
# - `x` [B, 5] and `y` [B, 3] are this rank's examples. The loss is the mean squared error, `((model(x) - y) ** 2).mean()`, of **all**
#   ranks' examples together.
# - `group` is the group to average in: `dist.get_world_size(group)` is p. It may be smaller than the world.
# - Every function returns the gradients, `[w.grad for w in model.parameters()]`, and sends with `dist.all_reduce`.
# - A check runs your function on groups of 2, 3 and 4 ranks where there are as many, with new weights and examples each time. It compares
#   with one device that has the whole batch, and the calls in the ledger with the budget.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Average gradients
# Difficulty 1 of 3 · 10 minutes · uses `dist.broadcast`, `dist.all_reduce`
#
# Write `mean_gradients(model, x, y, group)`. Here the models start from **different** weights. Give every rank those of the group's
# first rank, compute the gradients of this rank's examples (equally many on each), and return the average over ranks.
#
# Budget: each parameter once in a `broadcast`, each gradient once in an `all_reduce`.

# %% nbgrader={"grade": false, "grade_id": "mean_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def mean_gradients(model, x, y, group):
    """The gradients of the whole batch, at the weights of the group's first rank."""
    ### BEGIN SOLUTION
    p, first = dist.get_world_size(group), dist.get_global_rank(group, 0)
    for w in model.parameters():
        dist.broadcast(w.data, src=first, group=group)
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= p
    return [w.grad for w in model.parameters()]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A gradient belongs to a point. The average of gradients is the gradient of the average loss only if all were taken at the same weights.
# </details>
#
# <details><summary>Hint 2: the group's first rank</summary>
#
# `src` of `dist.broadcast` counts in the world: `dist.get_global_rank(group, 0)` is the first rank of the group. `w.data` is the parameter's
# tensor without autograd.
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# p, first = dist.get_world_size(group), dist.get_global_rank(group, 0)
# for w in model.parameters():
#     dist.broadcast(w.data, src=first, group=group)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_mean_gradients", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "mean_gradients")

# %% [markdown]
# ## 2. Buckets
# Difficulty 2 of 3 · 15 minutes · uses exercise 1
#
# Write `bucketed_gradients(model, x, y, bucket_bytes, group)`: the averages of exercise 1 in few calls. The models are equal now. Each call
# carries at most `bucket_bytes` (a multiple of 8, the bytes of a float64), and the tied matrix travels once.
#
# Budget: ceil(n / bucket_bytes) calls of `all_reduce`, where n is the bytes of all gradients. Parameters may be cut.

# %% nbgrader={"grade": false, "grade_id": "bucketed_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def bucketed_gradients(model, x, y, bucket_bytes, group):
    """The averaged gradients, in ceil(n / bucket_bytes) calls."""
    ### BEGIN SOLUTION
    ((model(x) - y) ** 2).mean().backward()
    weights = list(model.parameters())
    flat = torch.cat([w.grad.flatten() for w in weights])  # [n / 8]
    for bucket in flat.split(bucket_bytes // flat.element_size()):  # views
        dist.all_reduce(bucket, group=group)
    flat /= dist.get_world_size(group)
    for w, piece in zip(weights, flat.split([w.numel() for w in weights])):
        w.grad = piece.view_as(w)
    return [w.grad for w in weights]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# For the wire a gradient is a run of bytes. Lay all of them end to end, forget where one ends, and cut where a bucket is full.
# </details>
#
# <details><summary>Hint 2: there and back</summary>
#
# | step | call | shape |
# |---|---|---|
# | end to end | `torch.cat([w.grad.flatten() for w in weights])` | [n / 8] |
# | buckets | `flat.split(bucket_bytes // 8)` | views of at most [bucket_bytes / 8] |
# | back | `flat.split([w.numel() for w in weights])`, then `view_as(w)` | each parameter's own |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# ((model(x) - y) ** 2).mean().backward()
# weights = list(model.parameters())  # a tied parameter is in it once
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_bucketed_gradients", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "bucketed_gradients")

# %% [markdown]
# ## 3. Accumulation
# Difficulty 1 of 3 · 10 minutes · uses exercise 1
#
# Write `accumulated_gradients(model, xs, ys, group)`. A rank's examples come as lists of k micro-batches of equal size, because one forward
# pass cannot hold all of them. Return the gradients of the mean over all micro-batches of all ranks.
#
# Budget: as in exercise 1 each gradient once in an `all_reduce`, whatever k is.

# %% nbgrader={"grade": false, "grade_id": "accumulated_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def accumulated_gradients(model, xs, ys, group):
    """The averaged gradients of k micro-batches, sent once."""
    ### BEGIN SOLUTION
    for x, y in zip(xs, ys):
        (((model(x) - y) ** 2).mean() / len(xs)).backward()  # adds to w.grad
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Backward adds to `w.grad`. The sum over micro-batches is there for nothing, and only its average over ranks has to be sent.
# </details>
#
# <details><summary>Hint 2: two means</summary>
#
# The mean over k micro-batches and the mean over p ranks: one division by k, one by p.
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_accumulated_gradients", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "accumulated_gradients")

# %% [markdown]
# ## 4. Uneven batches
# Difficulty 2 of 3 · 15 minutes · uses exercise 1
#
# Write `weighted_gradients(model, x, y, group)`. Ranks have different numbers of examples, and one may have none: then `x` is [0, 5]. Return
# the gradients of the mean over all elements of all ranks' `y`, so that every example counts the same, wherever it is.
#
# Budget: each gradient once in an `all_reduce`, and one number more.

# %% nbgrader={"grade": false, "grade_id": "weighted_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def weighted_gradients(model, x, y, group):
    """The gradients of the mean over all examples, shares of any length."""
    ### BEGIN SOLUTION
    count = torch.tensor(y.numel(), device=y.device)
    dist.all_reduce(count, group=group)
    (((model(x) - y) ** 2).sum() / count).backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
    return [w.grad for w in model.parameters()]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A mean is a sum over a count. Sums add up over ranks, and so do counts; means do not.
# </details>
#
# <details><summary>Hint 2: an empty share</summary>
#
# | of no elements | value |
# |---|---|
# | `.mean()` | 0 / 0, not a number |
# | `.sum()` | 0, and backward gives zeros in every parameter's shape |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# count = torch.tensor(y.numel(), device=y.device)
# dist.all_reduce(count, group=group)
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_weighted_gradients", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "weighted_gradients")

# %% [markdown]
# ## 5. Hooks
# Difficulty 3 of 3 · 30 minutes · uses exercise 2
#
# Write `overlapped_gradients(model, x, y, bucket_bytes, group)`: the averages again, but a bucket leaves as soon as backward has filled it. A
# hook that you give to `w.register_post_accumulate_grad_hook(hook)` is called with `w` when `w.grad` is complete. Some ranks run the two
# branches of the model in another order, so gradients do not arrive in the same order everywhere. Remove your hooks at the end.
#
# Budget: ceil(n / bucket_bytes) calls of `all_reduce`, where a bucket of whole parameters may exceed bucket_bytes by its last one. The first
# begins before backward reaches `model.enter`; no hook waits; every handle is waited for.

# %% nbgrader={"grade": false, "grade_id": "overlapped_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def overlapped_gradients(model, x, y, bucket_bytes, group):
    """The averaged gradients, in buckets that leave while backward runs."""
    ### BEGIN SOLUTION
    p, buckets, size = dist.get_world_size(group), [[]], 0
    for w in reversed(list(model.parameters())):  # backward reaches the last parameter first
        if size >= bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(w)
        size += w.nbytes
    arrived, flats, handles = set(), [], []

    def ready(w):
        arrived.add(w)
        while len(flats) < len(buckets) and arrived.issuperset(buckets[len(flats)]):  # in order, on every rank
            flats.append(torch.cat([w.grad.flatten() for w in buckets[len(flats)]]) / p)
            handles.append(dist.all_reduce(flats[-1], group=group, async_op=True))

    hooks = [w.register_post_accumulate_grad_hook(ready) for w in model.parameters()]
    ((model(x) - y) ** 2).mean().backward()
    for hook in hooks:
        hook.remove()
    for bucket, flat, handle in zip(buckets, flats, handles):
        handle.wait()
        for w, piece in zip(bucket, flat.split([w.numel() for w in bucket])):
            w.grad = piece.view_as(w)
    return [w.grad for w in model.parameters()]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Decide what is in which bucket before backward begins, from the list of parameters alone: so all ranks decide the same. The hook only notes who
# has arrived. A bucket leaves when all its members are there **and** all buckets before it have left.
# </details>
#
# <details><summary>Hint 2: what each part keeps</summary>
#
# | when | what |
# |---|---|
# | before backward | `buckets`: lists of parameters, the last parameter first |
# | in the hook | `arrived`: a set of parameters; for each bucket that left its flat tensor and its handle |
# | after backward | wait for each handle, give the pieces back as `w.grad` |
# </details>
#
# <details><summary>Hint 3: the hook's first lines</summary>
#
# ```python
# def ready(w):
#     arrived.add(w)
#     while len(flats) < len(buckets) and arrived.issuperset(buckets[len(flats)]):
#         ...
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_overlapped_gradients", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "overlapped_gradients")

# %% [markdown]
# You wrote `DistributedDataParallel`: equal weights, averages by count, few calls, buckets that leave during backward. Every rank still holds the whole
# model, all of its gradients and all of Adam's moments. More ranks make a step shorter and a model no smaller. Lesson 05 cuts the weights
# themselves; lesson 07 takes the copies apart.
