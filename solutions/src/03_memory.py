# %% [markdown]
# # 03 Memory: exercises
#
# Lesson 03 counted the bytes of a training step. Here you write the counters, and then you save bytes. After this you can say
# what a model and its optimizer hold, what autograd keeps of a block, keep less of it with equal gradients, and find a tensor
# that is alive too long.
#
# - An answer is a function in a `%%px` cell, so that every rank has it. `torch` and `device` are there already.
# - A *storage* is a piece of memory; several tensors may look at one. `tensor.untyped_storage()` is the storage behind a
#   tensor, `.nbytes()` its size in bytes, `.data_ptr()` where it begins.
# - A check calls your function on every rank with models of random sizes, another one on each. It compares the result, sees that
#   nothing was sent, and counts the bytes that your function itself holds. What it prints is shown if the check fails.

# %% [markdown]
# The ranks, and the checks. Run this cell first; it returns the ranks that are running already, if there are any.

# %%
from tpcourse import check, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. An accountant for model states
# Difficulty 2 of 3 · 20 minutes · uses section 1 of the lesson
#
# Write `model_states(model, optimizer)`. Return a dict with the bytes held as `"parameter"`, `"gradient"`, `"master"` (what the
# optimizer steps and the model does not hold) and `"moment"` (the optimizer's state, but for what lies under the key `"step"`).
# Each storage counts once and whole; a kind that is not there is 0. Expect tied weights, gradients that are pieces of one
# bucket, frozen and unused parameters, two dtypes.
#
# Budget: no copy of anything.

# %% nbgrader={"grade": false, "grade_id": "model_states", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def model_states(model, optimizer):
    """Bytes by kind, each storage once."""
    ### BEGIN SOLUTION
    def held(tensors):
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    own = set(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    states = [item for state in optimizer.state.values() for item in state.items()]
    return {
        "parameter": held(own),
        "gradient": held(p.grad for p in own if p.grad is not None),
        "master": held(p for p in stepped if p not in own),
        "moment": held(tensor for name, tensor in states if name != "step"),
    }
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Make four lists of tensors, then add up the sizes of the storages behind each list. A dict with `data_ptr()` as the key
# holds each storage once.
# </details>
#
# <details><summary>Hint 2: where the tensors are</summary>
#
# | kind | where |
# |---|---|
# | parameter | `model.parameters()` |
# | gradient | `p.grad` of these, where it is not None |
# | master | `group["params"]` for each group of `optimizer.param_groups`, without the model's own |
# | moment | `optimizer.state[p]`, a dict for each `p`, without "step" |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# def held(tensors):
#     storages = [tensor.untyped_storage() for tensor in tensors]
#     return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_model_states", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "model_states")

# %% [markdown]
# ## 2. What autograd keeps
# Difficulty 2 of 3 · 20 minutes · uses section 3 of the lesson
#
# Write `saved_bytes(block, x)`. Run `block(x)` and return the bytes that autograd keeps for its backward: each storage once and
# whole. Leave out the block's parameters; `x` counts, where it is saved. `block` is any module; some of its operations save the same tensor, a view of
# a larger one, or a mask.
#
# `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is a context manager: inside it autograd calls `pack(tensor)` for each
# tensor that it saves, keeps what `pack` returns, and calls `unpack` with that in backward.
#
# Budget: nothing is held when your function has returned.

# %% nbgrader={"grade": false, "grade_id": "saved_bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def saved_bytes(block, x):
    """Bytes that autograd keeps of block(x), without the block's parameters."""
    ### BEGIN SOLUTION
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself may hold the graph that will hold it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        y = block(x)  # as long as y is there, so is all that was saved, and no address comes twice
    del y
    return sum(size for pointer, size in sizes.items() if pointer not in weights)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# Let `pack` note where each storage begins and how large it is, and return `tensor.detach()`: the same memory without the graph. When
# the forward is done, add up the sizes.
# </details>
#
# <details><summary>Hint 2: what to leave out, and what not</summary>
#
# | saved | counts |
# |---|---|
# | the input of a norm or a product | yes |
# | a weight, or a transposed view of it | no: its storage is a parameter's |
# | the second half of a product, a view | the whole product |
# | a sigmoid's output, which the product after it saves too | once |
# | a dropout mask | yes, 1 byte an element |
# </details>
#
# <details><summary>Hint 3: the first lines</summary>
#
# ```python
# weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
# sizes = {}
#
# def pack(tensor):
# ```
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_saved_bytes", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "saved_bytes")

# %% [markdown]
# ## 3. Selective recompute
# Difficulty 2 of 3 · 20 minutes · uses section 4 of the lesson
#
# Write `selective_recompute(layer, x)`, for a `TransformerLayer` and x of shape [B, T, D]. It returns what `layer(x)` returns, with the same
# gradients, and does not keep the scores: they are computed again in backward. These are the parts of the layer's forward:

# %% [markdown]
# ```python
# q, k, v = layer.project(x)       # norm, product: [B, T, D] -> three of [B H, T, K]
# context = layer.core(q, k, v)    # scores, softmax, dropout, sum of v: -> [B H, T, K]
# x = x + layer.join(context)      # product, dropout: -> [B, T, D]
# x = x + layer.mlp(x)             # norm, product, GELU, product, dropout
# ```
#
# Budget: bytes kept for backward, those of a layer that keeps no scores, 34 sbh in bfloat16 and 130 sbh in float64, in which the check runs;
# operations run again in backward, those of the core.

# %% nbgrader={"grade": false, "grade_id": "selective_recompute", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
from torch.utils.checkpoint import checkpoint


def selective_recompute(layer, x):
    """layer(x), its attention core computed again in backward: [B, T, D] -> [B, T, D]."""
    ### BEGIN SOLUTION
    q, k, v = layer.project(x)
    context = checkpoint(layer.core, q, k, v, use_reentrant=False)
    x = x + layer.join(context)
    return x + layer.mlp(x)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# `checkpoint(function, *inputs, use_reentrant=False)` returns `function(*inputs)` and keeps the inputs instead of what the function
# would save. In backward it calls the function again, with the same random numbers.
# </details>
#
# <details><summary>Hint 2: what each choice keeps and costs</summary>
#
# | in the checkpoint | keeps, in sbh | runs again |
# |---|---|---|
# | nothing | 34 + 5as/h | nothing |
# | `layer.core` | 34 | the products of tokens with tokens |
# | `layer.mlp` | 15 + 5as/h | two thirds of the weights' products |
# | `layer` | 2 | everything |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_selective_recompute", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "selective_recompute")

# %% [markdown]
# ## 4. Bug hunt: the tensor that is kept alive too long
# Difficulty 2 of 3 · 15 minutes · uses section 5 of the lesson
#
# This function trains with two losses. It is right, and on a small model nobody complains. Each step it holds more, and a large
# model runs out of memory in the third step. Somebody wrote `retain_graph=True` because without it PyTorch raised an error.

# %% [markdown]
# ```python
# def train_steps(model, optimizer, batches):
#     losses = []
#     for x, target in batches:
#         y = model(x)
#         loss = (y - target).square().mean()
#         size = 0.01 * y.square().mean()
#         optimizer.zero_grad()
#         loss.backward(retain_graph=True)
#         size.backward(retain_graph=True)
#         optimizer.step()
#         losses.append(loss)
#     return torch.stack(losses)
# ```
#
# Repair it, so that it returns the same losses, in float64, and leaves the same weights. To see the fault first, copy the function into the answer as it
# is and run the check.
#
# Budget: at no time more than the activations of one forward, and one forward for each batch.

# %% nbgrader={"grade": false, "grade_id": "train_steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
# %%px
def train_steps(model, optimizer, batches):
    """The loss of each step, [steps]; the model is trained in place."""
    ### BEGIN SOLUTION
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # the second backward needs the graph
        size.backward()  # and frees it
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: the idea</summary>
#
# A graph holds what it saved until a backward through it ends without `retain_graph`, or until nobody refers to it any more. A loss
# refers to its graph. Who refers to the losses?
# </details>
#
# <details><summary>Hint 2: who holds the graph of step 1 during the forward of step 2</summary>
#
# | name | holds it until |
# |---|---|
# | `losses[0]` | the function returns |
# | `y` | the forward of step 2 has returned |
# | `loss`, `size` | they are bound again, after that forward |
# </details>
#
# The check:

# %% nbgrader={"grade": true, "grade_id": "check_train_steps", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.exercise(ranks, "train_steps")

# %% [markdown]
# You counted model states and activations by storage, kept less with equal gradients, and freed a graph in time. All of it happened on one
# rank. The 16 bytes of a parameter are still there, on every rank that trains a whole copy of the model: adding ranks gives you more
# speed and not one byte. Lesson 04 trains on several ranks with a copy on each; lesson 07 takes the copies away.
