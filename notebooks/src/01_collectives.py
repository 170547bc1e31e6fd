# %% [markdown]
# # 01 Collectives
# **After this you can say what every rank holds before and after each collective, build them from send and
# receive, and count their steps and bytes before you run them.** About 60 minutes; uses lesson 00.
#
# There are nine calls, and all of parallel training is made of them. Three questions are enough to know
# one: who has the data before, who has them after, and is anything added on the way.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Copies and pieces
# `broadcast` copies one rank's array to all. `scatter` gives every rank one piece of it. `all_gather` joins
# the pieces of all ranks, on all ranks. The rank that has the data at the start is the *root*.
#
# **Rank 0 scatters its array; then the pieces are all-gathered. Which array does rank 1 end up with?**
#
# Rank $r$ starts with the numbers $10r, 10r+1, 10r+2, \dots$, so the tens tell you where a number was born.

# %%
my_guess = ...

# %% [markdown]
# `tpcourse.wire` wraps the calls of `torch.distributed`: each takes a tensor and returns a new one.
#
# <details><summary>What they are called in torch.distributed</summary>
#
# | here | there |
# |---|---|
# | `broadcast`, `all_reduce` | the same, written over the argument |
# | `reduce` | the same; leaves partial sums on the other ranks |
# | `scatter`, `gather` | the same, with a list of tensors on the root |
# | `all_gather` | `all_gather_single`; before 2.13 `all_gather_into_tensor` |
# | `reduce_scatter` | `reduce_scatter_single`; before 2.13 `reduce_scatter_tensor` |
# | `all_to_all` | `all_to_all_single` |
# | `exchange` (section 6) | `batch_isend_irecv` |
#
# </details>

# %%
# %%px
from tpcourse import wire

x = 10.0 * rank + torch.arange(2 * world_size, device=device)    # [n], n = 2p
piece = wire.scatter(x, root=0, group=world)                     # [n/p]
joined = wire.all_gather(piece, group=world)                     # [n]
joined[:2].tolist()

# %% [markdown]
# Everybody has rank 0's array: together the two calls are a broadcast. First the scatter, of which only the
# root's array counts, then the all-gather. Colour is the rank that held a number before.

# %%
draw.before_after(ranks["x"], ranks["piece"])

# %%
draw.before_after(ranks["piece"], ranks["joined"])

# %% [markdown]
# Why would anyone broadcast in two steps? Because the root sends each piece once, and the others help to
# spread them. For large arrays libraries do just that.
#
# `gather` is the mirror of `scatter`: all pieces, on the root only. (`a0` is number 0 of rank 0, `b0` of
# rank 1.)

# %%
draw.before_after("gather", len(ranks))

# %% [markdown]
# Scatter, then gather, and the root has what it had:
#
# $$\text{all-gather} \circ \text{scatter} = \text{broadcast}, \qquad
# \text{gather} \circ \text{scatter} = \text{identity}$$

# %% tags=["check"]
# %%px
copied = wire.broadcast(x, root=0, group=world)
back = wire.gather(piece, root=0, group=world)                   # None, but on the root
assert torch.equal(joined, copied) and (rank > 0 or torch.equal(back, x))

# %% [markdown]
# ## 2. Everybody writes to everybody
# In `all_to_all` each rank holds one piece for every rank, and sends them all.
#
# **Rank 1 holds `[10, 11, 12, ...]`, one number for each rank. Which number does rank 0 get from it, and
# what happens if you call `all_to_all` twice?**

# %%
my_guess = ...

# %% [markdown]
# One number for each rank is $n = p$:

# %%
# %%px
row = 10.0 * rank + torch.arange(world_size, device=device)  # [p]
received = wire.all_to_all(row, group=world)                 # [p]
again = wire.all_to_all(received, group=world)
received[:2].tolist() if rank == 0 else None

# %%
draw.before_after(ranks["row"], ranks["received"])

# %% [markdown]
# Rank 0 gets 10, the first number of rank 1: number $j$ of rank $i$ becomes number $i$ of rank $j$. Write
# the ranks as rows and it is the transpose of a matrix, so twice is the identity. Nothing is copied: every
# number has one home before and one after, and $\tfrac{p-1}{p}$ of them must travel. Lessons on experts and
# on long sequences will need it.

# %% tags=["check"]
# %%px
assert torch.equal(again, row)
assert received.tolist() == [10.0 * r + rank for r in range(world_size)]

# %% [markdown]
# ## 3. Sums
# The other family adds. `all_reduce`: the sum on all ranks. `reduce`: on the root only. `reduce_scatter`:
# on every rank one piece of the sum.
#
# **Each rank has an array of $2p$ numbers. How many numbers does it hold after `reduce_scatter`, and is the
# first of them larger or smaller than before?**

# %%
my_guess = ...

# %% [markdown]
# The average is the sum divided by $p$; `op="avg"` asks for it.

# %%
# %%px
total = wire.all_reduce(x, group=world)                          # [n]
mine = wire.reduce_scatter(x, group=world)                       # [n/p]
mean = wire.all_reduce(x, group=world, op="avg")                 # [n]
len(mine)

# %% [markdown]
# First `all_reduce`, then `reduce_scatter`. Stripes are a sum, one stripe for each rank in it:

# %%
draw.before_after(ranks["x"], ranks["total"])

# %%
draw.before_after(ranks["x"], ranks["mine"])

# %% [markdown]
# Two numbers each, and larger ones, for each is a full sum over all ranks: rank $r$ holds piece $r$ of what
# `all_reduce` would have given to everybody. "Scatter" is about the result, not about the input: every rank puts in its
# whole array and keeps one $p$-th of the sum.
#
# $$\text{mine}_r = \Big[\sum_s x_s\Big]_{\text{piece } r}$$
#
# Sum or average? Gradients of a loss that is a mean want the average; parts of one product want the sum.
# Both run without complaint, and the wrong one is off by exactly $p$.

# %% tags=["check"]
# %%px
assert torch.equal(mine, total[2 * rank : 2 * rank + 2])
assert torch.allclose(mean * world_size, total)

# %% [markdown]
# ## 4. All-reduce in two halves
# If `reduce_scatter` gives everybody a piece of the sum, `all_gather` can put the pieces together.
#
# **That is an all-reduce in two calls. How many times the bytes of one `all_reduce` does it send?**

# %%
my_guess = ...

# %% [markdown]
# A *ledger* notes every call that a rank makes and the bytes that it sends, as the best known algorithm
# would.

# %%
# %%px
from tpcourse.ledger import ledger

with ledger() as in_one:
    total = wire.all_reduce(x, group=world)
with ledger() as in_two:
    mine = wire.reduce_scatter(x, group=world)
    rebuilt = wire.all_gather(mine, group=world)
in_two.bytes_sent / in_one.bytes_sent

# %% [markdown]
# Exactly the same. An all-reduce has to send $\tfrac{p-1}{p}n$ bytes per rank to add and as many to spread
# the sums, and that is what the halves are. So you can cut an all-reduce open and do something in the
# middle, on one $p$-th of the array, for free. Sequence parallelism (lesson 06) and ZeRO (lesson 07) are
# this sentence.
#
# $$\text{all-reduce} = \text{all-gather} \circ \text{reduce-scatter}, \qquad
# 2\,\tfrac{p-1}{p}\,n = \tfrac{p-1}{p}\,n + \tfrac{p-1}{p}\,n$$

# %% tags=["check"]
# %%px
p, n = world_size, x.nbytes
assert torch.equal(rebuilt, total)
assert in_one.bytes_sent == in_two.bytes_sent == 2 * (p - 1) * n // p

# %% [markdown]
# ## 5. What backward does
# A collective is a linear map: it takes the numbers of all ranks to numbers on all ranks. Backward through
# a linear map $A$ is its transpose $A^\top$, also called its adjoint, and one equation decides whether you
# have the right one: $\langle Ax, y\rangle = \langle x, A^\top y\rangle$ for all $x$ and $y$, where the
# product runs over all ranks.
#
# **Forward is an all-gather. Backward each rank has a gradient for the whole array. Is it enough to take
# your own piece of your own gradient?**

# %%
my_guess = ...

# %% [markdown]
# Try it against `reduce_scatter`. `grad` is different on each rank, as gradients are.

# %%
# %%px
def dot(a, b):
    return wire.all_reduce((a * b).sum(), group=world).item()


grad = (x + rank) % 7                                            # [n]
left = dot(wire.all_gather(piece, group=world), grad)
own = dot(piece, grad[2 * rank : 2 * rank + 2])
summed = dot(piece, wire.reduce_scatter(grad, group=world))
left == own, left == summed

# %% [markdown]
# Your piece went to all ranks, and all of them used it. Each sends back what it owes, and what comes back
# is added. Whatever copies forward, adds backward, and the reverse. The slice alone keeps only your own
# share: a gradient that is too short and points elsewhere. The loss may still fall, and nothing complains.
#
# | forward | backward |
# |---|---|
# | all-gather | reduce-scatter |
# | broadcast | reduce |
# | scatter | gather |
# | all-reduce | all-reduce |
# | all-to-all | all-to-all |
# | send to the right | send to the left |
#
# Read each row in both directions. Here every rank's output counts for itself. In lesson 05 all ranks share one
# loss, and then the backward of an all-reduce needs no message at all.

# %% tags=["check"]
# %%px
for forward, backward in [
    (wire.all_gather, wire.reduce_scatter),
    (wire.reduce_scatter, wire.all_gather),
    (wire.all_reduce, wire.all_reduce),
    (wire.all_to_all, wire.all_to_all),
]:
    y = forward(x, group=world)
    grad = (y + rank) % 7
    assert dot(y, grad) == dot(x, backward(grad, group=world))

# %% [markdown]
# ## 6. A ring
# Inside a library a collective is made of messages. All the algorithms of this course are written with one
# function: send to one rank while receiving from another. `show_source` shows the code that runs.

# %%
from tpcourse import wire

show_source(wire.exchange)

# %% [markdown]
# In a ring everybody sends to the right neighbour and receives from the left one:

# %%
# %%px
right, left = (rank + 1) % world_size, (rank - 1) % world_size
mine = 10.0 * rank + torch.arange(4.0, device=device)
arrived = torch.empty_like(mine)
wire.exchange(mine, right, arrived, left, group=world)

# %%
draw.before_after(ranks["mine"], ranks["arrived"])

# %% [markdown]
# Now a sum. The first all-reduce that comes to mind: all send to rank 0, it adds and sends the sum back.
# Every byte passes one rank while the others wait.
#
# The ring has no such rank. Cut the array into $p$ pieces. In each step everybody passes one piece to the
# right and adds the piece that comes from the left.
#
# **Four ranks, arrays of $n$ bytes. How many bytes does the busiest rank send if all goes through rank 0,
# and how many in the ring? And with a hundred ranks?**

# %%
my_guess = ...

# %% [markdown]
# 24 numbers of 4 bytes: $n = 96$ bytes. `log.steps` counts rounds of messages that had to follow each
# other.

# %%
# %%px
x = rank + torch.arange(24.0, device=device)                     # [n]
with ledger() as star:
    wire.naive_all_reduce(x, group=world)
with ledger() as ring:
    total = wire.ring_all_reduce(x, group=world)
torch.equal(total, wire.all_reduce(x, group=world))

# %% [markdown]
# The same sum. What travelled, first through rank 0, then round the ring; each strip is a rank's array,
# solid cells leave and hatched cells arrived:

# %%
draw.messages(ranks["star"])

# %%
draw.messages(ranks["ring"])

# %% [markdown]
# Through rank 0 one rank sends $(p-1)\,n$ bytes: 99 arrays at a hundred ranks. In the ring every rank sends
# $\tfrac{p-1}{p}n$ twice, less than two arrays however many ranks there are, and every link works in every
# step. No algorithm sends less. The price is the number of steps, $2(p-1)$.
#
# Here is the first half, as it ran. The index is the whole difficulty: the sum of piece $r$ sets out from
# rank $r+1$, so that it comes home to rank $r$ complete.

# %%
show_source(wire.ring_reduce_scatter)

# %% [markdown]
# "A reduce-scatter is a reduce and then a scatter, in one call." The values say so. Ask the ledger too:

# %%
# %%px
with ledger() as one_call:
    mine = wire.ring_reduce_scatter(x, group=world)
with ledger() as two_calls:
    total = wire.naive_reduce(x, group=world)
    detour = wire.naive_scatter(x if total is None else total, group=world)
torch.equal(mine, detour)

# %% [markdown]
# **Verdict.** Same result, different cost: the detour takes twice the steps, a rank sends all $n$ bytes
# instead of $\tfrac{p-1}{p}n$, and rank 0 receives $p$ times what any rank of the ring does. Reduce-scatter
# is a collective in its own right. (`merge` makes one log of all ranks' logs; its `bytes_sent` is that of
# the busiest rank.)

# %% tags=["check"]
from tpcourse.ledger import merge

p, n = len(ranks), 96
one_call, two_calls = merge(ranks["one_call"]), merge(ranks["two_calls"])
assert two_calls.steps == 2 * one_call.steps == 2 * (p - 1)
assert one_call.bytes_sent == n * (p - 1) // p and two_calls.bytes_sent == n
received = [sum(e.bytes_received for e in log.rank(0).events) for log in (one_call, two_calls)]
assert received[1] == p * received[0]

# %% [markdown]
# ## 7. Fewer steps
# A ring of a thousand ranks needs 1,998 steps for an all-reduce, however small the array is. If every rank
# that has the data passes them on in each step, the number of ranks that have them doubles.
#
# **How many steps does such a tree need to broadcast to 1,024 ranks? And does it also win for very long
# arrays?**

# %%
my_guess = ...

# %% [markdown]
# `draw.collective_stepper` plays an algorithm: choose one and move the sliders. Set $p$ to 8 and count the
# steps.

# %%
draw.collective_stepper("broadcast, tree")

# %% [markdown]
# Ten: $\log_2 1024$. But each step of a tree carries the whole array.

# %%
show_source(wire.tree_broadcast)

# %% [markdown]
# *Halving and doubling* gets both: partners swap halves, then quarters, then eighths, and add; then the same
# way back. Its first half, where the number of ranks is a power of two and each has a *seat* of its own, seat
# $r$ being rank $r$'s:

# %%
from tpcourse.wire import halving

show_source(halving._halve)

# %% [markdown]
# Now all four ways to all-reduce, on your ranks, by the ledger:

# %%
# %%px
logs = {}
for way in ("naive", "tree", "ring", "halving_doubling"):
    all_reduce = getattr(wire, f"{way}_all_reduce")
    with ledger() as logs[way]:
        all_reduce(x, group=world)

# %% [markdown]
# In the notebook, the logs of all ranks are merged, one line for each way:

# %% tags=["nbval-ignore-output"]
ways = ("naive", "tree", "ring", "halving_doubling")
measured = {way: merge(log[way] for log in ranks["logs"]) for way in ways}
for way, log in measured.items():
    print(f"{way:18}{log.steps:3} steps, the busiest rank sends {log.bytes_sent:4} bytes")

# %% [markdown]
# | all-reduce | steps | bytes, busiest rank |
# |---|---|---|
# | naive | $2(p-1)$ | $(p-1)\,n$ |
# | tree | $2\lceil\log_2 p\rceil$ | $\lceil\log_2 p\rceil\, n$ |
# | ring | $2(p-1)$ | $2\tfrac{p-1}{p}\,n$ |
# | halving and doubling, $p$ a power of two | $2\log_2 p$ | $2\tfrac{p-1}{p}\,n$ |
#
# Why then does anybody use rings? A ring talks to neighbours only, so it needs one good link per rank;
# halving and doubling talks across the machine in every step, and all at once. Libraries keep several and
# choose by the size of the message and by the wiring. At two ranks ring and halving are the same.

# %% tags=["check"]
from math import ceil, log2

twice, doublings = 2 * n * (p - 1) // p, ceil(log2(p))
found = {way: (log.steps, log.bytes_sent) for way, log in measured.items()}
assert found["naive"] == (2 * (p - 1), (p - 1) * n)
assert found["ring"] == (2 * (p - 1), twice)
assert found["tree"][0] == 2 * doublings
assert found["halving_doubling"] == (2 * doublings, twice) or p & (p - 1)
assert (100 - 1, 2 * (1000 - 1), log2(1024)) == (99, 1998, 10)

# %% [markdown]
# ## 8. Start now, wait later
# With `async_op=True` a call returns at once with a *handle*, and the data travel while you do something
# else.
#
# **Rank 1 arrives half a second late. Rank 0 starts its sum and, before it waits, sets its tensor to zero,
# to use it again. Which sum does rank 1 get?**

# %%
my_guess = ...

# %% [markdown]
# Rank 0 brings 3 and rank 1 brings 4, as in lesson 00. `early` is what a rank reads before it waits.

# %%
# %%px
import time


def late_sum(reuse):
    value = torch.tensor([{0: 3.0, 1: 4.0}.get(rank, 0.0)], device=device)
    dist.barrier(group=world)
    time.sleep(0.5 if rank == 1 else 0)
    handle = dist.all_reduce(value, group=world, async_op=True)
    early = value.item()
    if rank == 0 and reuse:
        value.zero_()
    handle.wait()
    return early, value.item()


spoilt, right = late_sum(reuse=True), late_sum(reuse=False)
spoilt[1], right[1]

# %% [markdown]
# Four instead of seven, on every rank, and no error: the 3 was gone before the late rank came for it. (NCCL
# may have sent it in time; then the error comes and goes.) From the start to `wait` the tensor belongs to
# the library. Write into it, and you spoil the sum of *all* ranks, on a day when one of them is slow. Read
# it, and you get an old value (rank 0 read 3), a new one, or a mixture.
#
# What does `wait` promise? On the CPU (gloo): the result is in your tensor. On a GPU (NCCL) less. A GPU
# takes its operations, the *kernels*, from queues, the *streams*. Yours go into the *current stream*, NCCL's
# into another, and what you put into the current stream after `wait` runs when the result is there. The CPU
# does not stop. So
#
# - a kernel that you launch after `wait` on this stream sees the sum;
# - a kernel on another stream may not;
# - a clock on the CPU read after `wait` has measured the launch, not the sum;
# - `.item()`, `.cpu()` and `torch.cuda.synchronize()` really wait;
# - nobody promises that *another* rank has its result.

# %% tags=["check"]
assert ranks["right"][0] == (3.0, 7.0)
assert {late for _, late in ranks["right"]} == {7.0}
assert {late for _, late in ranks["spoilt"]} == {4.0} or ranks.backend == "nccl"

# %% [markdown]
# ## You saw
# You saw nine calls, each known by who has the data before, who has them after and whether something is
# added. An all-reduce is a reduce-scatter and an all-gather, in bytes too. What copies forward adds
# backward. Steps and bytes are two prices, and you can count both before you run anything.
#
# The exercises (`exercises/01_collectives.ipynb`) let you write five of them: the ring's three, the tree
# and the pairwise all-to-all, and find out why two groups wait for each other.
#
# **One case that fails.** If bytes were all that counts, two hundred all-reduces of 1,000 numbers would
# take as long as one of 200,000.

# %%
# %%px
def seconds(num_calls, length):
    x = torch.ones(length, device=device)
    dist.all_reduce(x, group=world)
    x[0].item()
    begin_s = time.perf_counter()
    for _ in range(num_calls):
        dist.all_reduce(x, group=world)
    x[0].item()
    return time.perf_counter() - begin_s


few_s, many_s = seconds(1, 200_000), seconds(200, 1_000)

# %% [markdown]
# The same bytes. Is the time the same, give or take a factor of two?

# %% tags=["raises-exception", "nbval-ignore-output"]
times = max(ranks["many_s"]) / max(ranks["few_s"])
assert times < 2, f"equal bytes, {times:.0f} times the time"

# %% [markdown]
# It is not. Something is paid per message, whatever its length. Lesson 02 measures it.
