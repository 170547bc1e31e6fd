"""Answers to lesson 07's exercises beside the solution: right in another way, or around a budget."""

from __future__ import annotations

from exercise_help import Answers

ANSWERS = Answers("07_zero")
solution, changed = ANSWERS.solution, ANSWERS.changed

LAST_KEPT = """
def layered_step(x, target, layers, pieces, dp):
    p, L, inputs, gradients = dist.get_world_size(dp), len(layers), [], []

    def gathered(number):
        parts = [torch.empty_like(pieces[number]) for _ in range(p)]
        dist.all_gather(parts, pieces[number], group=dp)
        return torch.cat(parts)[: layers[number].size]

    for number, layer in enumerate(layers):
        inputs.append(x)
        whole = gathered(number)
        x = layer.forward(x, whole)
        whole = whole if number == L - 1 else None
    dy = x - target
    for number in reversed(range(L)):
        whole = whole if number == L - 1 else gathered(number)
        dy, dflat = layers[number].backward(inputs.pop(), whole, dy)
        whole = None
        piece = torch.empty_like(pieces[number])
        dist.reduce_scatter(piece, list(pad(dflat / p, (0, -len(dflat) % p)).chunk(p)), group=dp)
        gradients.insert(0, piece)
    return x, gradients
"""
RELEASED = """
def layered_step(x, target, layers, pieces, dp):
    p, inputs, gradients = dist.get_world_size(dp), [], []
    wholes = [piece.new_empty(p * len(piece)) for piece in pieces]
    for whole in wholes:
        whole.untyped_storage().resize_(0)

    def use(number, work, *args):
        whole = wholes[number]
        whole.untyped_storage().resize_(whole.nbytes)
        all_gather_single(whole, pieces[number], group=dp)
        result = work(args[0], whole[: layers[number].size], *args[1:])
        whole.untyped_storage().resize_(0)
        return result

    for number, layer in enumerate(layers):
        inputs.append(x)
        x = use(number, layer.forward, x)
    dy = x - target
    for number in reversed(range(len(layers))):
        dy, dflat = use(number, layers[number].backward, inputs.pop(), dy)
        gradients.append(reduce_scatter(pad(dflat / p, (0, -len(dflat) % p)), group=dp))
    return x, gradients[::-1]
"""
SCATTERED_ADAM = changed(
    "sharded_adam",
    ("        dist.all_reduce(g, group=dp)\n", ""),
    ("pad(g / p, (0, p * n - P))[r * n : (r + 1) * n]", "reduce_scatter(pad(g / p, (0, p * n - P)), group=dp)"),
    ("[r * n : (r + 1) * n].clone()", "[r * n : (r + 1) * n]"),
    ("whole = all_gather(piece, group=dp)", "all_gather_single(whole, piece, group=dp)"),
)  # fmt: skip
TURN_KEPT = changed(
    "prefetched_step",
    ("order = [*range(L), *reversed(range(L))]", "order = [*range(L), *reversed(range(L - 1))]"),
    ("if use + 1 < 2 * L else None", "if use + 1 < 2 * L - 1 else None"),
    ("            continue", "            if use < L - 1:\n                continue"),
    ("        if use == L:\n            dy = x - target", "            dy = x - target"),
)  # fmt: skip
BY_STATE_DICT = changed(
    "reloaded_adam",
    ('adam.state[piece] = {"step": file["step"], **arrays}',
     'groups = adam.state_dict()["param_groups"]\n'
     '    adam.load_state_dict({"state": {0: {"step": file["step"], **arrays}}, "param_groups": groups})'),
)  # fmt: skip
BEGIN = (
    "        whole = piece.new_empty(p * len(piece))\n"
    "        return whole, all_gather_single(whole, piece, group=dp, async_op=True)\n"
)
WAIT = "        whole, work = following\n        work.wait()\n"
FUNCTIONAL = "import torch.distributed._functional_collectives as funcol\n\n\n" + changed(
    "prefetched_step",
    (BEGIN, "        return funcol.all_gather_tensor(piece, 0, dp)\n"),
    (WAIT, "        whole = funcol.wait_tensor(following)\n"),
)
OPERATORS = "functional = torch.ops._c10d_functional\n\n\n" + changed(
    "prefetched_step",
    (BEGIN, "        return functional.all_gather_into_tensor(piece, p, dp.group_name)\n"),
    (WAIT, "        whole = functional.wait_tensor(following)\n"),
)
RIGHT = {
    "last layer kept for backward, lists of tensors": ("layered_step", LAST_KEPT),
    "memory released by its size": ("layered_step", RELEASED),
    "scattered gradients, gathered in place": ("sharded_adam", SCATTERED_ADAM),
    "last layer fetched once": ("prefetched_step", TURN_KEPT),
    "states by load_state_dict": ("reloaded_adam", BY_STATE_DICT),
    "functional collectives": ("prefetched_step", FUNCTIONAL),
    "operators of functional collectives": ("prefetched_step", OPERATORS),
}


HIDDEN = """
def layered_step(x, target, layers, pieces, dp):
    p, kept, gradients = dist.get_world_size(dp), [], []
    for layer, piece in zip(layers, pieces):
        kept.append((x, all_gather(piece, group=dp)[: layer.size].tolist()))
        x = layer.forward(x, torch.tensor(kept[-1][1], dtype=x.dtype))
    dy = x - target
    for layer in reversed(layers):
        h, numbers = kept.pop()
        dy, dflat = layer.backward(h, torch.tensor(numbers, dtype=x.dtype), dy)
        gradients.append(reduce_scatter(pad(dflat / p, (0, -layer.size % p)), group=dp))
    return x, gradients[::-1]
"""
PEEKED = """
import pickle

store = dist.distributed_c10d._get_default_store()

def clipped_piece(piece, P, max_norm, dp):
    members = dist.get_process_group_ranks(dp)
    store.set(f"{members} {P} {max_norm} {rank}", pickle.dumps(piece))
    pieces = [pickle.loads(store.get(f"{members} {P} {max_norm} {other}")) for other in members]
    norm = torch.cat(pieces)[:P].norm()
    return norm, piece * (max_norm / norm).clamp(max=1)
"""
BY_HAND = """
def sharded_adam(weights, gradient, steps, options, dp):
    P, p, (first, second), lr = len(weights), dist.get_world_size(dp), options["betas"], options["lr"]
    n = -(-P // p)
    m, v = torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(1, steps + 1):
        g = gradient(weights)
        dist.all_reduce(g, group=dp)
        g /= p
        m, v = m.lerp(g, 1 - first), second * v + (1 - second) * g**2
        root = (v / (1 - second**step)).sqrt() + options["eps"]
        weights = weights * (1 - lr * options["weight_decay"]) - lr / (1 - first**step) * m / root
        r = dist.get_rank(dp)
        weights = all_gather(pad(weights, (0, p * n - P))[r * n : (r + 1) * n], group=dp)[:P]
    return weights
"""
BEHIND = changed("reloaded_adam", ("read(j)", "read._files[j]"))
IN_A_LIST = "kept = []\n\n\n" + changed(
    "scattered_gradients", ("w.grad = None", "kept.append(w.grad)\n        w.grad = None")
)
BEHIND_THE_LOOP = changed(
    "sharded_adam",
    ("        whole = all_gather(piece, group=dp)\n", ""),
    ("return whole[:P]", "return all_gather(piece, group=dp)[:P]"),
)
AROUND = {
    "pieces gathered behind the loop": ("sharded_adam", BEHIND_THE_LOOP, "; an all_gather in each of 3 steps is due"),
    "weights as numbers in a list": ("layered_step", HIDDEN, "weights are kept where nobody counts them"),
    "pieces of others without a message": ("clipped_piece", PEEKED, "by another road than messages"),
    "no optimizer of torch": ("sharded_adam", BY_HAND, "steps with no optimizer of torch"),
    "files without read": ("reloaded_adam", BEHIND, "reads no file, and its piece lies in file"),
    "gradients in a list of the notebook": ("scattered_gradients", IN_A_LIST, "The whole gradient is still alive"),
}
