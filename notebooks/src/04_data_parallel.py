# %% [markdown]
# # 04 Data parallel
# **After this you can train one model on many ranks and end with the weights of one device, and let the gradients travel
# while backward still runs.** About 50 minutes; uses lessons 01 and 02.
#
# It is the oldest way to use many GPUs, and the one that every other way is combined with. All ranks hold the same
# model, each sees other examples, and before the optimizer steps they agree on one gradient.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. The same step on every rank
# Each rank takes its share of a batch and computes the gradient of the mean loss of its own examples. The ranks should then take
# the step that one device with the whole batch would have taken.
#
# **What must they do with their gradients: add them, or average them? And would your answer change if the loss were a sum?**

# %%
my_guess = ...

# %% [markdown]
# Two examples on each rank. `whole` is what one device computes from all of them.

# %%
# %%px
from torch.nn import functional as F

from tpcourse import wire

torch.manual_seed(0)
weight = torch.randn(3, dtype=torch.float64).to(device).requires_grad_()
x = torch.randn(2 * world_size, 3, dtype=torch.float64).to(device)      # [B, D], the same on every rank
(whole,) = torch.autograd.grad((x @ weight).tanh().mean(), weight)

mine = x[2 * rank : 2 * rank + 2]                                       # [B/p, D]
(own,) = torch.autograd.grad((mine @ weight).tanh().mean(), weight)
total = wire.all_reduce(own, group=world)
torch.allclose(total, whole), torch.allclose(total / world_size, whole)

# %% [markdown]
# Average. The loss of the whole batch is a mean over all examples, and so it is the mean of the ranks' means. A gradient is linear, so
# the gradient of the mean is the mean of the gradients. Had the loss been a sum, the sum would be right.
#
# $$L = \frac1p\sum_r L_r \quad\Rightarrow\quad \nabla L = \frac1p\sum_r \nabla L_r$$
#
# The wrong one is off by a factor of $p$, and nothing complains: plain SGD takes steps that are $p$ times too long, and Adam, which
# divides by the size of the gradient, hardly notices.

# %% tags=["check"]
# %%px
assert torch.allclose(total, world_size * whole) and not torch.allclose(own, whole)

# %% [markdown]
# The formula has a condition that is easy to miss: all $\nabla L_r$ are taken at the **same** weights.
#
# **Now every rank draws its own random weights and they train for a hundred steps, with averaged gradients. Do the weights grow
# together, drift apart, or neither?**

# %%
my_second_guess = ...

# %% [markdown]
# `apart` is how far a rank's weights are from those of rank 0, before and after.

# %%
# %%px
def train(weight, steps=100):
    for _ in range(steps):
        (own,) = torch.autograd.grad((mine @ weight).tanh().mean(), weight)
        with torch.no_grad():
            weight -= 0.1 * wire.all_reduce(own, group=world, op="avg")
    return weight.detach()


torch.manual_seed(rank)
weight = torch.randn(3, dtype=torch.float64).to(device).requires_grad_()
before = weight.detach() - wire.broadcast(weight.detach(), group=world)
after = train(weight) - wire.broadcast(weight.detach(), group=world)
torch.allclose(before, after)

# %% [markdown]
# Neither. All take the same steps, so they stay exactly as far apart as they began: $p$ different models, each moved by gradients
# that belong to none of them. The loss even falls.

# %% tags=["check"]
# %%px
assert torch.allclose(before, after) and (rank == 0 or before.abs().max() > 0.01)

# %% [markdown]
# So training begins with a broadcast of all weights from one rank. From then on nobody sends weights again: equal weights plus
# equal steps are equal weights.

# %%
from tpcourse.data import broadcast_module

show_source(broadcast_module)

# %% [markdown]
# ## 2. Shares that are not equal
# The last batch of an epoch is rarely a multiple of $p$, and sequences of text have different lengths.
#
# **Rank 0 has one example, every other rank has three. Each takes the mean loss of its own examples, and the gradients are averaged. Is that
# the gradient of the mean over all examples?**

# %%
my_guess = ...

# %% [markdown]
# `largest_error` is relative.

# %%
# %%px
from tpcourse.data import mean_over_ranks


def largest_error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


torch.manual_seed(0)
weight = torch.randn(3, dtype=torch.float64).to(device).requires_grad_()
x = torch.randn(3 * world_size - 2, 3, dtype=torch.float64).to(device)
mine = x[:1] if rank == 0 else x[3 * rank - 2 : 3 * rank + 1]
(whole,) = torch.autograd.grad((x @ weight).tanh().mean(), weight)

loss_sum = (mine @ weight).tanh().sum()
(of_means,) = torch.autograd.grad(loss_sum / len(mine), weight, retain_graph=True)
(of_sums,) = torch.autograd.grad(mean_over_ranks(loss_sum, len(mine), dp=world), weight)
errors = [largest_error(wire.all_reduce(g, group=world, op="avg"), whole) for g in (of_means, of_sums)]
[error < 1e-12 for error in errors]

# %% [markdown]
# No. The average of averages gives rank 0's only example three times the weight of any other. Means do not add up over ranks;
# sums do, and counts do. So each rank takes the **sum** $S_r$ of its losses, the ranks add up their counts, and
#
# $$L = \frac{\sum_r S_r}{N} = \frac1p \sum_r \frac{p\,S_r}{N}, \qquad N = \sum_r n_r$$
#
# The last form is what `mean_over_ranks` returns, so that whatever averages gradients may go on averaging. It costs one all-reduce of one
# number, and none if the counts are known. A rank with no example gives a sum of 0, whose gradient is 0; its mean would be 0/0.

# %% tags=["check"]
# %%px
assert errors[0] > 0.01 and errors[1] < 1e-12

# %% [markdown]
# ## 3. Few calls
# From here on the model is a small GPT, and the text is the source of Python's own standard library: one token for each byte.
#
# **Its gradients are a few dozen tensors. How many all-reduces does one step need, at most, and at least?**

# %%
my_guess = ...

# %% [markdown]
# First a call for each parameter. Then `average_in_buckets`, which lays gradients end to end and cuts them into buckets of 50 kB:

# %%
from tpcourse.data import average_in_buckets

show_source(average_in_buckets)

# %% [markdown]
# `x` and `y` are this rank's share of a batch of eight sequences.

# %%
# %%px
from tpcourse.data import average_gradients, average_in_buckets
from tpcourse.ledger import ledger
from tpcourse.train import GPT, batch, loss_sum, source_tokens

tokens = source_tokens(100_000).to(device)
x, y = batch(tokens, 8, 32, step=0, rank=rank, p=world_size)            # [B_r, T]
torch.manual_seed(0)
model = GPT().double().to(device)

loss_sum(model, x, y).backward()
with ledger() as one_each:
    average_gradients(model, dp=world)
with ledger() as in_buckets:
    average_in_buckets(model, dp=world, bucket_mb=0.05)
one_each.num_calls, in_buckets.num_calls

# %% [markdown]
# The same bytes, 28 calls or 6. For the wire a gradient is a run of bytes, so it does not matter where one ends: $n$ bytes in
# buckets of $b$ need
#
# $$\lceil n / b \rceil$$
#
# calls, and one is enough if the bucket is large. Lesson 02 measured what a call costs; a model of 70 layers has hundreds of small
# gradients, of norms and biases, and each would pay it.
#
# The head of this GPT is its embedding, used a second time. `model.parameters()` names such a *tied* weight once; it has one gradient, to which both
# uses added, and it travels once. A walk over the layers would send it twice.

# %% tags=["check"]
# %%px
n = sum(weight.nbytes for weight in model.parameters())
assert one_each.num_calls == len(list(model.parameters())) == 28
assert in_buckets.num_calls == -(-n // 50_000) == 6
assert sum(e.numel * 8 for e in one_each.events) == sum(e.numel * 8 for e in in_buckets.events) == n
assert model.head.weight is model.tokens.weight

# %% [markdown]
# ## 4. Leave early
# So far everything is sent after backward, while no rank computes. But backward does not finish all gradients at its end.
#
# **Which gradients are finished first? When backward has come back to the first block, which buckets cannot have left?**

# %%
my_guess = ...

# %% [markdown]
# `DataParallel` gives every weight a hook, which autograd calls when that weight's gradient is complete. It changes nothing else: you call the model,
# `backward` and the optimizer as before. `seen` is how many calls had begun when backward left the first block.

# %%
# %%px
from tpcourse.data import DataParallel

parallel = DataParallel(model, dp=world, bucket_mb=0.05, first_bucket_mb=0.01)
seen = []
model.blocks[0].register_full_backward_hook(lambda *_: seen.append(log.num_calls))
model.zero_grad()
with ledger() as log:
    loss_sum(model, x, y).backward()
seen[0], log.num_calls

# %%
draw.bucket_order(ranks["log"])

# %% [markdown]
# All but three, which hold a piece of the embeddings. The last layer's gradients are ready first, so gradients are laid out backwards,
# from the last weight to the first: the picture's left end is the head's side. (The tied matrix belongs to both ends, so it is
# ready last.) When a bucket is full, its all-reduce starts, asynchronously, and backward goes on. After the
# first layer there is only the wait for what is still under way.
#
# The first bucket is smaller, so that the wire starts early:
#
# $$1 + \Big\lceil \frac{n - b_\text{first}}{b} \Big\rceil \text{ calls}$$
#
# Two rules keep this right. The order of buckets comes from the list of parameters, which is the same on all ranks, and not from the order of
# arrival, which need not be. And a bucket that is full waits until all before it have left. Calls have no names (lesson 00): the first
# of one rank meets the first of the others, and two buckets of equal size in another order would be averaged with each other.

# %%
from tpcourse.data import DataParallel

show_source(DataParallel._arrived)

# %% [markdown]
# How often is a gradient copied? Autograd writes a fresh gradient where it likes, so one copy takes it into the bucket. There is none
# back: afterwards `weight.grad` *is* a piece of the bucket.

# %%
show_source(DataParallel._leave)

# %% [markdown]
# The check counts the calls, looks at their order on this rank, and at where the gradients lie.

# %% tags=["check"]
# %%px
sent = [(e.offset, e.numel) for e in log.events]
assert sent == sorted(sent) and sent[0] == (0, 10_000 // 8)
assert log.num_calls == 1 + -(-(n - 10_000) // 50_000) == len(parallel.buckets)
assert seen[0] == log.num_calls - 3
flat = parallel.gradients.flat[torch.float64]
assert all(w.grad.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for w in model.parameters())

# %% [markdown]
# ## 5. Many micro-batches, one average
# A batch that does not fit in memory is run in pieces: forward and backward for each, and one step of the optimizer at the end.
#
# **Four micro-batches in a step. How many times the bytes of a step with one?**

# %%
my_guess = ...

# %% [markdown]
# Four micro-batches of one sequence, and two loops that give the same gradients. The second runs all but its last backward within
# `no_sync`, in which the hooks send nothing.

# %%
# %%px
from contextlib import nullcontext

x, y = batch(tokens, 4 * world_size, 32, step=1, rank=rank, p=world_size)


def gradient_of(quiet):
    model.zero_grad()
    with ledger() as log:
        for number, (part, target) in enumerate(zip(x.split(1), y.split(1))):
            with parallel.no_sync() if quiet and number < 3 else nullcontext():
                loss_sum(model, part, target).backward()
    return model.places.weight.grad.clone(), log


every, each_time = gradient_of(quiet=False)
last, once = gradient_of(quiet=True)
torch.allclose(every, last), once.num_calls == len(parallel.buckets)

# %% [markdown]
# The same bytes, if you ask for it. Backward adds to `weight.grad`, and the average is linear, so the ranks may average after each micro-batch or
# once, after the last. The first costs as many times the bytes as there are micro-batches, and no test of values can see it. Count the calls.
#
# $$\frac1p\sum_r \sum_k g_{r,k} = \sum_k \frac1p\sum_r g_{r,k}$$

# %% tags=["check"]
# %%px
assert torch.allclose(every, last) and each_time.num_calls == 4 * once.num_calls == 4 * len(parallel.buckets)

# %% [markdown]
# ## 6. What has no gradient
# A layer that this batch does not use, an adapter that only some examples reach, a head that is kept for later: backward never comes by, and
# its hook never runs.
#
# **The bucket of such a weight waits for it. What should happen?**

# %%
my_guess = ...

# %% [markdown]
# `spare` is never used. The cell below ends with an error, and is meant to.

# %% tags=["raises-exception"]
# %%px
class WithSpare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


net = WithSpare().to(device)
DataParallel(net, dp=world)
net(torch.ones(2, 3, device=device)).sum().backward()

# %% [markdown]
# Often it is a mistake in the model, so the sentence names the weights. If it is not, say `allow_unused=True`. Then a rank that does not reach a weight adds
# zeros for it, and the bucket leaves at the end of backward. It cannot leave earlier: only then is it certain that nothing comes. One
# unused weight in an early bucket, and nothing is hidden.

# %%
# %%px
DataParallel(net, dp=world, allow_unused=True)
net.zero_grad()
net(torch.ones(2, 3, device=device)).sum().backward()
net.used.bias.grad.tolist(), net.spare.bias.grad

# %% [markdown]
# No rank reached `spare`, so it has no gradient, as on one device: with zeros instead, weight decay would shrink it. Had one rank
# reached it, all would hold the average.
#
# Three more things are not averaged. *Frozen* weights have no gradient and no place in a bucket. *Buffers*, such as the running statistics of
# a batch norm, follow each rank's own examples; `parallel.broadcast_buffers()` makes them equal when you need it. And *dropout* should
# differ: with one seed on all ranks, every share of the batch drops the same places.

# %%
# %%px
def kept(seed):
    torch.manual_seed(seed)
    mask = F.dropout(torch.ones(64), 0.5) > 0
    return wire.all_reduce(mask.to(device).long(), group=world)


same, other = kept(seed=0), kept(seed=rank)
all(same % world_size == 0), all(other % world_size == 0)

# %% [markdown]
# With one seed a place is kept on all ranks or on none. So: one seed for the weights, or a broadcast; then `torch.manual_seed(seed + rank)`.

# %% tags=["check"]
# %%px
assert net.used.bias.grad.tolist() == [2.0] * 3 and net.spare.bias.grad is None and net.spare.weight.grad is None
assert all(same % world_size == 0) and not all(other % world_size == 0)

# %% [markdown]
# ## 7. Against one device, and against PyTorch's
# **Train the GPT for ten steps of Adam: on one device with whole batches, with `DataParallel` on uneven shares, and with PyTorch's
# `DistributedDataParallel`. In float64, how far apart are the weights at the end?**

# %%
my_guess = ...

# %% [markdown]
# Seven sequences are not a multiple of 2, 3 or 4. Every rank also plays the one device.

# %%
# %%px
from torch.nn.parallel import DistributedDataParallel

from tpcourse.train import train_step


def trained(p, r, wrap):
    torch.manual_seed(0)
    model = GPT().double().to(device)
    called, parallel = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(10):
        x, y = batch(tokens, 7, 32, step=step, rank=r, p=p)
        train_step(called, optimizer, x, y, parallel=parallel)
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


alone = trained(1, 0, lambda model: (model, None))
ours = trained(world_size, rank, lambda model: (model, DataParallel(model, dp=world, bucket_mb=0.05)))
bool(largest_error(ours, alone) < 1e-12)

# %% [markdown]
# `DistributedDataParallel` wraps the model and averages by itself, so its step is written out, with the same loss:

# %%
# %%px
torch.manual_seed(0)
model = GPT().double().to(device)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    x, y = batch(tokens, 7, 32, step=step, rank=rank, p=world_size)
    optimizer.zero_grad()
    mean_over_ranks(loss_sum(ddp, x, y), y.numel(), dp=world).backward()
    optimizer.step()
theirs = torch.cat([weight.detach().flatten() for weight in model.parameters()])
bool(largest_error(ours, theirs) < 1e-12)

# %% [markdown]
# The same, up to the rounding of float64. That is what "data parallel" promises, and it is a promise that you can test: anything
# larger than $10^{-12}$ here is a mistake and not noise. In float32 or bfloat16 the two would differ from the first step on, and you could
# not tell a mistake from rounding.
#
# Values are half of it. How long does a step take, for each size of bucket? On the CPU the model that is timed here is tiny:

# %%
from tpcourse.cli.bench.calls import here
from tpcourse.cli.bench.data import summary

found = ranks.run(here, "data_parallel", "measure_here", 3)[0]
curves = {"this machine": summary(found).figures}

# %% [markdown]
# Beside it, in grey, a recorded run of two GPUs with 350 million parameters. 1 is the same step without any communication; the dashed lines are
# `DistributedDataParallel`.

# %% tags=["nbval-ignore-output"]
draw.bucket_curve(curves | draw.recorded("data"))

# %% [markdown]
# On GPUs small buckets pay for every call: 709 of them take more of the processor's time than the step. One bucket for all leaves when
# backward is over, and all of it is exposed. Over NVLink that is 3 ms of 100, over a link of a tenth of its speed it would be a fifth of
# the step. In between the curve is flat, which is why one default, 25 MB, serves nearly everybody. On a CPU the ranks' messages need
# the same processors as their backward, so there is little to hide behind and few calls win.

# %% tags=["check"]
# %%px
assert largest_error(ours, alone) < 1e-12 and largest_error(ours, theirs) < 1e-12

# %% [markdown]
# ## You saw
# You saw equal weights stay equal because every step is: an average of gradients, by count where shares differ, in few calls, each as early as backward
# allows, once for all micro-batches. In values nothing distinguishes it from one device.
#
# In the exercises (`exercises/04_data_parallel.ipynb`) you write it: averages, buckets, accumulation, uneven batches, hooks.
#
# **One case that fails.** With $p$ ranks a step takes on $p$ times as many examples. So does a model fit that is $p$ times as large?

# %%
# %%px
whole_bytes = sum(weight.nbytes for weight in GPT().double().parameters())
held_bytes = sum(weight.nbytes for weight in model.parameters())

# %% [markdown]
# If ranks shared the model, each would hold its $p$-th part:

# %% tags=["raises-exception"]
held, whole = ranks["held_bytes"][0], ranks["whole_bytes"][0]
assert held == whole / len(ranks), f"{held / whole:.0%} of the weights on every rank"

# %% [markdown]
# Every rank holds all of it, and of the gradients and moments as well. Data parallelism divides the work and copies the model. Lesson 05 divides
# the weights themselves.
