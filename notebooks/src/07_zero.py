# %% [markdown]
# # 07 ZeRO
# **After this you can let data-parallel ranks share what each of them holds whole, first Adam's states, then gradients, then weights; say
# what a step sends for it; and count the bytes that a rank is left with.** About 60 minutes; uses lessons 03 and 04.
#
# Lesson 06 ended with copies of one model that all hold the same. They are the ranks of a data-parallel group, called `dp`; here it is all
# ranks, `dp=world`.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Held p times
# A step of mixed-precision Adam holds 16 bytes a weight (lesson 03), and each data-parallel rank holds all 16.
#
# **Which of these bytes does a rank need whole, and at which moment of the step?**

# %%
my_guess = ...

# %% [markdown]
# Each rank takes sequences of its own from Python's standard library, and the ranks average their gradients, as in lesson 04.

# %%
# %%px
from tpcourse import memory
from tpcourse.adam import MixedAdam
from tpcourse.data import average_in_buckets
from tpcourse.train import GPT, batch, loss_sum, source_tokens

text = source_tokens(100_000).to(device)


def new_model(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return GPT(D=48, L=6).to(device, dtype)


def loss_of(model, step=0, sequences=1, length=32):
    x, y = batch(text, sequences * world_size, length, step=step, rank=rank, p=world_size)  # [B_r, T]
    return loss_sum(model, x, y) / y.numel()

# %% [markdown]
# One step, and what is held then:

# %%
# %%px
model = new_model()
adam = MixedAdam(model.parameters())
loss_of(model).backward()
average_in_buckets(model, dp=world)
adam.step()
held = memory.held(model, adam)
num_weights = sum(weight.numel() for weight in model.parameters())

# %% [markdown]
# On every rank, and dashed what the formula says:

# %%
from tpcourse import memory

draw.memory_bars(ranks["held"], memory.model_state_bytes(ranks["num_weights"][0]))

# %% [markdown]
# The same bar on every rank, and after the average the same numbers in it. Who needs them?
#
# | held | bytes | is read by |
# |---|---|---|
# | weights | 2 | forward and backward, a layer at a time |
# | gradients | 2 | the optimizer, once they are averaged |
# | master, moments | 12 | the optimizer, and nobody else |
#
# Twelve of the sixteen bytes serve the optimizer alone. So: does each rank have to step all weights?

# %%
# %%px
from tpcourse.dims import split_range


def stepped(weight, gradient):
    weight = weight.clone()
    adam = torch.optim.AdamW([weight], lr=0.1)
    for _ in range(3):
        weight.grad = gradient.clone()
        adam.step()
    return weight


torch.manual_seed(0)
weight, gradient = torch.randn(2, 100, dtype=torch.float64).to(device)
start, end = split_range(100, world_size, rank)
mine, whole = stepped(weight[start:end], gradient[start:end]), stepped(weight, gradient)
torch.allclose(mine, whole[start:end], rtol=1e-14)

# %% [markdown]
# It does not. Adam treats each element alone: its step follows from this element's weight, gradient and two moments.
#
# $$w_i \leftarrow w_i - \eta\,\frac{\hat m_i}{\sqrt{\hat v_i} + \epsilon}$$
#
# So a piece of the step is the step of a piece, and where one piece ends does not matter: within a matrix, within a row. (SGD is like that,
# too. An optimizer that looks at whole matrices is not.) That is all ZeRO needs (arXiv:1910.02054); the rest is where things lie, and when
# they travel.

# %% tags=["check"]
# %%px
assert sum(size for kind, size in held.items() if kind != "other") == 16 * num_weights
assert torch.allclose(mine, whole[start:end], rtol=1e-14) and not torch.equal(mine, weight[start:end])

# %% [markdown]
# ## 2. Stage 1: each rank steps a piece
# **A model has dozens of weights, of sizes that $p$ does not divide. How would you cut them, so that every rank gets as many elements as
# the others?**

# %%
my_guess = ...

# %% [markdown]
# A small net, with weight decay for its matrices and none for its biases: two parameter groups.

# %%
# %%px
from torch import nn

from tpcourse.zero import Zero1

net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.Linear(5, 2)).to(device)
matrices, biases = list(net.parameters())[0::2], list(net.parameters())[1::2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0}]
zero = Zero1(net, dp=world, groups=groups, lr=0.1)
flats = [dict(zip(flat.names, flat.sizes)) for flat in zero.flats]
[(len(flat.names), sum(flat.sizes)) for flat in zero.flats]

# %%
draw.flat_pieces(ranks["flats"][0], len(ranks))

# %% [markdown]
# Lay the weights end to end and cut the array, wherever the cut falls. PyTorch's `ZeroRedundancyOptimizer` deals out whole weights, which
# is simpler, and as uneven as the weights are: an embedding that is a third of the model cannot be dealt evenly to four ranks. The end is
# padded with zeros, fewer than $p$ of them, because reduce-scatter and all-gather want equal pieces. There is an array for each group, as
# decay differs, for each dtype, and for each bucket: the last weights first, as backward finishes them. The weights of the module become
# views of the array, so nothing is held twice.
#
# Now the optimizer step of lesson 04 needs one edit. There: average all gradients, and step everything. Here:

# %%
from tpcourse.zero import Zero1

for part in (Zero1.step, Zero1.reduce, Zero1._leave, Zero1._spread):
    show_source(part)

# %% [markdown]
# Each bucket is averaged so that a rank gets its own piece of the average and no more, a *reduce-scatter*; each rank lends the optimizer
# its piece; then every piece goes to everybody, an *all-gather*. The optimizer is PyTorch's own, and has never heard of the other ranks. In
# bfloat16 it steps the *master* copy in float32, which exists for the rank's piece only, and `settle` rounds it.
#
# What is left of the 16 bytes? Weighed as above, after a backward, with Adam's moments there:

# %%
# %%px
pair = dist.new_group([0, 1])


def weigh(stage, p):
    """Bytes a weight on the first p ranks."""
    if rank >= p:
        return None
    zero = stage(new_model(), dp=pair if p == 2 else world, bucket_mb=0.1, lr=1e-3)
    loss_of(zero.module).backward()
    zero.step()
    zero.zero_grad()
    loss_of(zero.module).backward()
    return {kind: n for kind, n in zero.held.per(num_weights).items() if kind != "other"}


of_two = weigh(Zero1, 2)

# %% [markdown]
# On two ranks:

# %%
round(sum(ranks["of_two"][0].values()), 2)

# %% [markdown]
# Ten. Twelve bytes are divided, four are not:
#
# $$2 + 2 + \frac{12}{p}$$
#
# "But stage 1 sends gradients, and then weights as well, so it costs more communication than data parallel."
#
# **How many times the bytes of data parallel?**

# %%
my_second_guess = ...

# %% [markdown]
# A step of `DataParallel` and one of `Zero1`, both in float32:

# %%
# %%px
from tpcourse.data import DataParallel
from tpcourse.ledger import ledger


def step_log(stage, **options):
    zero = stage(new_model(torch.float32), dp=world, lr=1e-3, **options)
    with ledger() as log:
        loss_of(zero.module).backward()
        zero.step()
    return log


model = new_model(torch.float32)
DataParallel(model, dp=world)
with ledger() as averaged:
    loss_of(model).backward()
first = step_log(Zero1)
round(first.bytes_sent / averaged.bytes_sent, 3), [event.op for event in first.events]

# %% [markdown]
# Once. An all-reduce *is* a reduce-scatter and an all-gather (lesson 01), and stage 1 puts the optimizer between the two halves, as lesson
# 06 put a norm there. Elements that a rank sends, of P in all:
#
# $$\underbrace{\frac{p-1}{p}P}_{\text{gradients, scattered}} + \underbrace{\frac{p-1}{p}P}_{\text{weights, gathered}} = \frac{2(p-1)}{p}P$$
#
# **Verdict.** False: the same bytes, but for the padding. Two things can make it look true. Whoever keeps the all-reduce, and then gathers,
# sends half as much again, and no test of values tells. And data parallel has a backward to hide its bytes under; the gather behind the
# step has nothing.

# %% tags=["check"]
# %%px
assert round(sum(of_two.values()), 2) == 10 if rank < 2 else of_two is None
padded = sum(flat.whole.numel() for flat in Zero1(new_model(torch.float32), dp=world, lr=1e-3).flats)
assert 0 <= padded - num_weights < world_size
assert first.bytes_sent == 2 * 4 * padded * (world_size - 1) // world_size
assert averaged.bytes_sent <= first.bytes_sent < 1.001 * averaged.bytes_sent

# %% [markdown]
# ## 3. Stage 2: let gradients go
# In stage 1 the whole gradients wait until backward is over. Then a rank keeps a $p$-th of them, and drops the rest.
#
# **When is the earliest moment at which a rank could drop a gradient? What becomes of the 2 bytes then?**

# %%
my_guess = ...

# %% [markdown]
# The edit is to average a bucket when backward has filled it, from hooks as in lesson 04:

# %%
from tpcourse.zero import Zero2

show_source(Zero2._arrived)

# %% [markdown]
# `memory.peak` looks after every operation of a step, at what the step has made on top of weights and states.

# %%
# %%px
from tpcourse.zero import Zero2


def watched(stage):
    zero = stage(new_model(), dp=world, bucket_mb=0.03, lr=1e-3)
    loss_of(zero.module).backward()
    zero.step()                                     # makes the moments
    zero.zero_grad()
    with memory.peak() as seen:
        seen.mark("forward")
        loss = loss_of(zero.module, length=4)
        seen.mark("backward")
        loss.backward()
        seen.mark("step")
        zero.step()
    return seen


peaks = {"stage 1": watched(Zero1), "stage 2": watched(Zero2)}

# %%
draw.memory_curve(ranks["peaks"][0])

# %% [markdown]
# In stage 1 backward climbs to the gradients of all weights. In stage 2 it climbs to a $p$-th of that, with bumps for the bucket or two
# that are on their way. When a bucket leaves, what its weights had in `grad` is freed, and this rank's piece of the average is what stays.
# (The step widens gradients to float32 one array at a time, so the hill of lesson 03 is a row of small ones.)
#
# $$2 + \frac{2}{p} + \frac{12}{p}$$
#
# The bytes sent are those of stage 1, only earlier, and under backward. One thing to get used to: after backward `weight.grad` is None, and
# no rank has the whole gradient. Its norm is then a sum over ranks, as in lesson 05; `zero.clip` does it, and leaves the padding out.
#
# Now accumulation. In lesson 04 all micro-batches but the last ran within `no_sync`, which saved bytes and cost nothing.
#
# **Four micro-batches in stage 2. What does `no_sync` save, and what does it cost?**

# %%
my_second_guess = ...

# %% [markdown]
# On two ranks: what a step sends, as a multiple of a step with one micro-batch, and the bytes of gradients a weight before the last backward.

# %%
# %%px
from contextlib import nullcontext


def accumulate(quiet):
    zero = Zero2(new_model(), dp=pair, bucket_mb=0.1, lr=1e-3)
    with ledger() as log:
        for number in range(4):
            gradients = zero.held.get("gradient", 0) / num_weights
            with zero.no_sync() if quiet and number < 3 else nullcontext():
                loss_of(zero.module, step=number).backward()
        zero.step()
    return round(log.bytes_sent / (2 * num_weights), 2), round(gradients, 2)


ways = {"each time": accumulate(quiet=False), "no_sync": accumulate(quiet=True)} if rank < 2 else None

# %% [markdown]
# Bytes sent, bytes held:

# %%
ranks["ways"][0]

# %% [markdown]
# It costs what stage 2 is for: to add up in silence, a rank must keep whole gradients. Averaged each time, $k$ micro-batches send $k$
# scatters and one gather, for $2/p$ bytes held; in silence they send one scatter and one gather, and hold 2.
#
# $$\frac{(k+1)(p-1)}{p}P \quad\text{or}\quad \frac{2(p-1)}{p}P$$
#
# Bytes on the wire or bytes on the card: the choice is yours. (PyTorch's `fully_shard` offers the same one as
# `set_requires_gradient_sync`.)

# %% tags=["check"]
at_step = {name: seen.curve[seen.marks[2][0]] for name, seen in ranks["peaks"][0].items()}
gradients = 2 * ranks["num_weights"][0]
assert 1 <= at_step["stage 1"] / gradients < 1.1
assert 1 / len(ranks) <= at_step["stage 2"] / gradients < 1 / len(ranks) + 0.1
assert ranks["ways"][0] == {"each time": (2.5, 1.0), "no_sync": (1.0, 2.0)}

# %% [markdown]
# ## 4. Stage 3: weights come and go
# Forward and backward need all weights, but one layer at a time.
#
# **If no rank keeps more than a $p$-th of any layer, when must a layer's weights come, when may they go, and how often do they travel in a
# step?**

# %%
my_guess = ...

# %% [markdown]
# `Watch` notes after every operation which flat arrays, one for each layer, have memory, and which of them are still being gathered.

# %%
# %%px
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.zero import Zero3


class Watch(TorchDispatchMode):
    def __init__(self, flats):
        super().__init__()
        self.flats, self.seen = flats, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace != "c10d":            # an operation, and no collective
            sizes = [flat.whole.untyped_storage().nbytes() for flat in self.flats]
            self.seen.append([(n, flat.is_under_way) for n, flat in zip(sizes, self.flats)])
        return result

# %% [markdown]
# A forward and a backward, once with `prefetch` and once without.

# %%
# %%px
steps = {}
for name, prefetch in (("with prefetch", True), ("without", False)):
    zero = Zero3(new_model(), dp=world, prefetch=prefetch, lr=1e-3)
    with Watch(zero.flats[::-1]) as watch:
        loss = loss_of(zero.module)
        backward = len(watch.seen)
        loss.backward()
    steps[name] = watch.seen
names = [flat.names[0].split(".norm")[0] for flat in watch.flats]

# %%
draw.layers_here(ranks["steps"][0], ranks["names"][0], ranks["backward"][0])

# %% [markdown]
# A block's weights come just before its forward, and go just after it. Backward multiplies with them once more, so they come a second time,
# and go when their gradients are there. (The top line is what belongs to no block: embeddings, which are the head too, and the last norm.
# They stay while the model runs.)
#
# Without prefetch a block waits for its own weights. With it, when a block begins, the gather of the next one does too, hatched, and
# travels while this one computes. The price is in the title of each part: one layer more.
#
# Here is the edit. Hooks call `_need` when a layer begins, and `release` when it is through; `_spread`, the gather behind the optimizer
# step, is gone:

# %%
from tpcourse.zero import Flat, Zero3

for part in (Zero3._need, Zero3._before_forward, Zero3._spread, Flat.start_gather, Flat.release):
    show_source(part)

# %% [markdown]
# `release` gives the memory back and keeps the name: weights, views and what autograd has saved still point to the array. That is why no
# layer has to be rewritten. And it is why between calls a weight has no numbers: to read one, say `with zero.whole():`.
#
# "ZeRO-3 costs 50 % more communication."

# %%
# %%px
second, third = step_log(Zero2), step_log(Zero3)
[round(log.bytes_sent / averaged.bytes_sent, 3) for log in (first, second, third)]

# %% [markdown]
# **Verdict.** True, of bytes. Each weight travels forward, backward, and as a gradient:
#
# $$\frac{3(p-1)}{p}P$$
#
# Of time it says nothing: gathers can travel under the layer before, as the hatched bars show, and gradients under backward. But with $k$
# micro-batches the weights come $2k$ times. A step then sends $3k\frac{p-1}{p}P$, or $(2k+1)\frac{p-1}{p}P$ within `no_sync`, which keeps whole
# gradients. Accumulation, which costs data parallel nothing, is dear here.
#
# All three edits, side by side:
#
# | | data parallel | stage 1 | stage 2 | stage 3 |
# |---|---|---|---|---|
# | a layer begins | | | | gather its weights |
# | a layer is through | | | | free them |
# | a bucket is full | start its all-reduce | | reduce-scatter, free it | reduce-scatter, free it |
# | backward is over | wait | reduce-scatter | wait | wait |
# | the optimizer steps | all | a piece | a piece | a piece |
# | after it | | gather all weights | gather all weights | |
#
# And what they leave, on two ranks and on yours:

# %%
# %%px
stages, sizes = {1: Zero1, 2: Zero2, 3: Zero3}, sorted({2, world_size})
weighed = {(number, p): weigh(stage, p) for p in sizes for number, stage in stages.items()}

# %% [markdown]
# Below each bar the formula, dashed. Stage 1 divides the first two of master, moments, gradients and weights; stage 2 the first three; stage 3 all
# four.

# %%
def said(number, p):
    cut = ("master", "moment", "gradient", "parameter")[: number + 1]
    return {kind: n / p if kind in cut else n for kind, n in memory.model_state_bytes(1).items()}


weighed = {f"stage {number}, {p} ranks": held for (number, p), held in ranks["weighed"][0].items()}
formulas = {f"stage {number}, {p} ranks": said(number, p) for number, p in ranks["weighed"][0]}
alone = {"data parallel": memory.model_state_bytes(1)}
draw.stage_bytes(alone | weighed, alone | formulas)

# %% [markdown]
# Sixteen become 10, 9 and 8 on two ranks; on four they would be 7, 5.5 and 4. With many ranks stage 1 goes to 4, stage 2 to 2, and stage 3
# to nothing at all:
#
# $$2 + 2 + \frac{12}{p} \qquad 2 + \frac{2 + 12}{p} \qquad \frac{2 + 2 + 12}{p}$$

# %% tags=["check"]
assert [sum(said(number, p).values()) for p in (2, 4) for number in (1, 2, 3)] == [10, 9, 8, 7, 5.5, 4]
for name, held in weighed.items():
    assert all(abs(held[kind] / n - 1) < 0.03 for kind, n in formulas[name].items())
steps = ranks["steps"][0]
most = [max(sum(n > 0 for n, _ in row) for row in seen) for seen in steps.values()]
assert most == [3, 2] and not any(coming for row in steps["without"] for _, coming in row)
ratios = [log.bytes_sent / ranks["averaged"][0].bytes_sent for log in (ranks[n][0] for n in ("second", "third"))]
assert all(said <= ratio < 1.001 * said for said, ratio in zip((1, 1.5), ratios, strict=True))

# %% [markdown]
# ## 5. One N-th of the memory?
# "With ZeRO-3 on N GPUs, each needs one N-th of the memory."
#
# **On two ranks: which part of what data parallel holds is left, with one sequence a rank? And with sixteen?**

# %%
my_guess = ...

# %% [markdown]
# States as before; activations are what autograd keeps of a forward, loss included. For stage 3 the most that was gathered at a time counts
# as weights. `dp=None` is one device, which holds what a data-parallel rank holds.

# %%
# %%px
def hold(dp, sequences):
    zero = Zero3(new_model(), dp=dp, lr=1e-3) if dp else Zero1(new_model(), dp=None, lr=1e-3)
    loss_of(zero.module).backward()
    zero.step()
    zero.zero_grad()
    kept = memory.saved(loss_of, zero.module, sequences=sequences).bytes
    with Watch(zero.flats if dp else []) as watch:
        loss_of(zero.module, sequences=sequences).backward()
    held = {kind: n for kind, n in zero.held.items() if kind != "other"} | {"activation": kept}
    held["parameter"] += max(sum(n for n, _ in row) for row in watch.seen)
    return held


held = {n: (hold(None, n), hold(pair, n)) for n in (1, 16)} if rank < 2 else None

# %%
draw.memory_shares(*ranks["held"][0][1], ("data parallel", "each of 2 ranks"))

# %% [markdown]
# That was one sequence. With sixteen:

# %%
draw.memory_shares(*ranks["held"][0][16], ("data parallel", "each of 2 ranks"))

# %% [markdown]
# **Verdict.** A rank needs an N-th of the *states*. Its activations are those of its own sequences, and no stage of ZeRO touches them; and
# the layer that computes is there whole, with the next one on its way:
#
# $$\frac{16P}{p} + 2 \cdot 2P_\text{layer} + \text{activations}$$
#
# The middle term does not fall with $p$; in backward the gradients of a layer or two come on top, and always what belongs to no layer. Here that is
# much, for the model has six blocks; with 80 it is little. As batches grow, the ratio of the totals rises, here from 0.59 to 0.84, and goes on
# towards one. What divides activations are lessons 05 and 06, or computing them again (lesson 03).

# %% tags=["check"]
for one_device, of_two in ranks["held"][0].values():
    assert all(abs(2 * of_two[kind] / one_device[kind] - 1) < 0.01 for kind in ("gradient", "master", "moment"))
    assert one_device["activation"] == of_two["activation"] and 0.5 < of_two["parameter"] / one_device["parameter"] < 1
few, many = (sum(of_two.values()) / sum(one_device.values()) for one_device, of_two in ranks["held"][0].values())
assert 0.5 < few < 0.75 < many < 1

# %% [markdown]
# ## 6. Saved by p, read by another number
# No rank can save the model, for none has it. So each saves its pieces.
#
# **Tomorrow you get two ranks, or one. What must a file say about a piece, so that they can go on as if nothing had happened?**

# %%
my_guess = ...

# %% [markdown]
# A folder that all ranks see:

# %%
# %%px
from tempfile import mkdtemp

folder = [mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder, group=world)
folder = folder[0]

# %% [markdown]
# `train` takes steps in which 24 sequences are shared by the ranks that there are. `weights_after` does so with one of our stages, in
# float64.

# %%
# %%px
def train(model, optimizer, steps, p=world_size, r=rank):
    for step in steps:
        x, y = batch(text, 24, 8, step=step, rank=r, p=p)
        optimizer.zero_grad()
        (loss_sum(model, x, y) * p / (24 * 8)).backward()   # averaged over ranks: the mean
        optimizer.step()


def weights_after(zero, steps, p=world_size, r=rank):
    train(zero.module, zero, steps, p, r)
    with zero.whole():
        return torch.cat([weight.detach().flatten() for weight in zero.module.parameters()])

# %% [markdown]
# Two steps of stage 3 on all ranks, then `save`, then two steps more:

# %%
# %%px
from tpcourse.zero import load, read, save

zero = Zero3(new_model(torch.float64), dp=world, lr=1e-3)
weights_after(zero, range(2))
save(zero, folder)
went_on = weights_after(zero, range(2, 4))

# %% [markdown]
# Now read it into stage 1 on two ranks, and on one device, and take the same two steps. The last lines take the weights alone, with a new
# Adam.

# %%
# %%px
def resumed(dp, p, r=rank):
    zero = Zero1(new_model(torch.float64), dp=dp, lr=1e-3)
    load(zero, folder)
    return weights_after(zero, range(2, 4), p, r)


def error(got):
    return ((got - went_on).abs().max() / went_on.abs().max()).item()


on_two = error(resumed(pair, 2)) if rank < 2 else None
on_one = error(resumed(None, 1, 0))
model = new_model(torch.float64)
model.load_state_dict(read(folder), strict=False)   # a tied weight has one name
forgot = error(weights_after(Zero1(model, dp=None, lr=1e-3), range(2, 4), 1, 0))

# %% [markdown]
# Equal to those who went on?

# %%
names = {"two ranks": "on_two", "one device": "on_one", "weights alone": "forgot"}
errors = {name: ranks[variable][0] for name, variable in names.items()}
{name: error < 1e-12 for name, error in errors.items()}

# %% [markdown]
# It would not do to say "piece 3 of 4": another number of ranks cuts elsewhere, and another stage has other arrays. What stays is the
# weights. So a file says of which weight each run of numbers is, and where in it the run begins. A rank that loads asks for the runs that
# it needs, from whichever files have them. `spans` lists a rank's runs, and is used both ways:

# %%
from tpcourse.zero import Flat

show_source(Flat.spans)

# %% [markdown]
# Moments lie as the weights do, and travel with them. Without them Adam begins again from zero. Nothing complains, and it is another
# training. (The files are written by `torch.distributed.checkpoint`, PyTorch's library for this.)
#
# And a rank can die while it saves. So files get new names, and when all are complete an index changes from the old save to the new in one
# rename. At every moment the folder holds one whole save.

# %% tags=["check"]
from shutil import rmtree

assert max(errors["two ranks"], errors["one device"]) < 1e-12 < 1e-6 < errors["weights alone"]
rmtree(ranks["folder"][0])

# %% [markdown]
# ## 7. Against one device, and against PyTorch's
# **Ten steps of AdamW in float64: on one device, with our three stages, and with PyTorch's `ZeroRedundancyOptimizer` and `fully_shard`.
# Which of them differ from one device, and by how much?**

# %%
my_guess = ...

# %% [markdown]
# Every rank also plays the one device.

# %%
# %%px
one_device = weights_after(Zero1(new_model(torch.float64), dp=None, lr=1e-3), range(10), 1, 0)
ours = [stage(new_model(torch.float64), dp=world, bucket_mb=0.1, lr=1e-3) for stage in stages.values()]
ours_after = [weights_after(zero, range(10)) for zero in ours]


def same(got):
    return bool((got - one_device).abs().max() < 1e-12 * one_device.abs().max())


[same(got) for got in ours_after]

# %% [markdown]
# PyTorch's stage 1 is an optimizer beside `DistributedDataParallel`. Its stage 3, `fully_shard`, is called for each layer and then for the
# model, and makes `DTensor`s of the weights.

# %%
# %%px
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

replicated = new_model(torch.float64)
redundancy = ZeroRedundancyOptimizer(replicated.parameters(), torch.optim.AdamW, process_group=world, lr=1e-3)
train(DistributedDataParallel(replicated, process_group=world), redundancy, range(10))
sharded, mesh = new_model(torch.float64), DeviceMesh.from_group(world, device.type)
for part in (*sharded.blocks, sharded):
    fully_shard(part, mesh=mesh)
adam = torch.optim.AdamW(sharded.parameters(), lr=1e-3)
train(sharded, adam, range(10))

# %% [markdown]
# Their weights, and the bytes of `fully_shard` over those of our stage 3:

# %%
# %%px
whole = [weight.full_tensor() for weight in sharded.parameters()]
theirs = [torch.cat([w.detach().flatten() for w in weights]) for weights in (replicated.parameters(), whole)]
ratio = memory.held(sharded, adam).total / ours[2].held.total
[same(got) for got in theirs], round(ratio, 1)

# %% [markdown]
# None differs, up to the rounding of float64. ZeRO is placement: who holds what, and when it travels. It takes the steps of data
# parallelism, so what you know of learning rates and batches holds as before. And ours holds what theirs holds: `fully_shard` cuts each
# weight by rows, ours cuts wherever a piece ends.
#
# What is left is time. On a CPU it says little, as ranks and messages want the same cores. So a run on GPUs was recorded: memory against
# time of a step.

# %% tags=["nbval-ignore-output"]
draw.memory_and_time(*draw.recorded_stages())

# %% [markdown]
# The dots are ours, the triangles PyTorch's. A point further down holds less, further left is faster, and the arrow is what prefetch does
# to stage 3. Stages 1 and 2 peak at the same byte: where all activations are held, neither has gradients yet. The steps differ by two per cent: over
# NVLink all calls are short beside the products, even the half more of stage 3. Without prefetch a little of it shows. Over a slower link it would
# be more. Which stage to take, then? The first that fits: stage 1 saves the most, stage 2 sends no more while a step has one micro-batch, and
# stage 3 always does.

# %% tags=["check"]
# %%px
assert all(same(got) for got in (*ours_after, *theirs)) and 0.95 < ratio < 1.1

# %% [markdown]
# More ranks hold less, each. Recorded on four GPUs, with the third stage's 16/p dashed:

# %% tags=["nbval-ignore-output"]
draw.by_ranks(*draw.recorded_scale("zero"), ylabel="bytes a weight", ideal=lambda p: 16 / p)

# %% [markdown]
# And in the run on two GPUs, the one with dots and triangles, our stage 3 takes as long as `fully_shard`, and 1.04 times its memory. The check leaves a
# little room:

# %% tags=["check"]
rows = {row["name"]: row for row in draw.recorded_stages()[0]}
third, theirs = rows["stage 3"], rows["fully_shard"]
assert third["ms"] <= 1.10 * theirs["ms"] and third["peak_GB"] <= 1.05 * theirs["peak_GB"]

# %% [markdown]
# ## You saw
# You saw 16 bytes a weight on every rank, and three edits of one step. Each rank steps a piece; gradients leave as soon as a bucket is
# full; weights come a layer at a time. They leave 10, 9 and 8 bytes on two ranks, for 2P, 2P and 3P elements sent, and the numbers of one
# device. And you saw what they do not divide: activations, and the layer that computes.
#
# In the exercises (`exercises/07_zero.ipynb`) you write all three, fetch a layer ahead, and load what four ranks saved on two.
#
# **One case that fails.** Prefetch lets a gather travel while the layer before computes. Does that hide all of them? An array that was not
# there, and is there whole after the next operation, has travelled while nothing was computed:

# %%
# %%px
seen = [[(0, False)] * len(names), *steps["with prefetch"]]
arrivals = [
    name
    for old, new in zip(seen, seen[1:])
    for name, (was, _), (now, coming) in zip(names, old, new)
    if now and not was and not coming
]

# %% [markdown]
# If each gather had something to hide under, there would be none:

# %% tags=["raises-exception"]
arrivals = ranks["arrivals"][0]
assert not arrivals, f"gathered while every rank waits: {' and again '.join(arrivals)}"

# %% [markdown]
# Once forward and once backward a step begins with a layer that has none before it, and all ranks wait. In lesson 06 it is worse: there
# every gather brings what the very next product needs. Lesson 08 cuts such a gather in pieces, and multiplies the first while the others
# travel.
