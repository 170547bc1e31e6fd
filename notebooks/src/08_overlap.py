# %% [markdown]
# # 08 Overlap
# **After this you can let messages travel while products run, say which part of a step can be hidden and which cannot, and tell from wall
# time whether it was.** About 60 minutes; uses lessons 02, 05, 06 and 07.
#
# Lesson 07 ended with gathers that all ranks wait for. In lesson 06 it is worse: there each gather brings what the very next product needs.
# Here the ranks compute meanwhile.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. What may overlap
# An MLP with sequence parallelism gathers tokens, multiplies by columns and by rows, and scatters sums. Backward has collectives of its
# own.
#
# **Two collectives forward, three backward, if tokens are gathered again there. Which of the five have a product beside them that needs
# nothing of theirs?**

# %%
my_guess = ...

# %% [markdown]
# `order` notes products, calls and waits in the order in which a rank's program comes to them. There is no clock in it.

# %%
# %%px
from torch.nn import functional as F

from tpcourse.linear import column_linear, row_linear
from tpcourse.timeline.order import order

B, T, D, N = 1, 24 * world_size, 32, 48     # T of all ranks, N columns of a rank


def mlp(x, up, down, overlap):
    how = {"tp": world, "sequence_dim": 1, "overlap": overlap}
    return row_linear(F.gelu(column_linear(x, up, regather=True, **how)), down, **how)


def leaves(T=T, D=D, N=N):
    shapes = (B, T // world_size, D), (N, D), (D, N)    # this rank's x, up, down
    return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]


x, up, down = leaves()
forward = order(mlp, x, up, down, "serial")
y = mlp(x, up, down, "serial")
backward = order(y.sum().backward)

# %% [markdown]
# Forward:

# %%
draw.order(ranks["forward"])

# %% [markdown]
# Backward:

# %%
draw.order(ranks["backward"])

# %% [markdown]
# Forward is a chain: every link needs the one before it. Backward has two products for each product of forward, and they do not need each
# other.
#
# | collective | needs | is needed by | free product |
# |---|---|---|---|
# | gather $x$ | | the first product | none |
# | scatter-sum of $y$ | the last product | what follows | none |
# | gather $dy$ | | both products of the rows | none |
# | gather $x$ again | | $dW$ of the columns | $dx = dy\,W$ |
# | scatter-sum of $dx$ | $dx$ | what follows | $dW = dy^\top x$ |
#
# So two of five can be hidden by order alone: begin the call, multiply, then wait. The course's layers have done that since lesson 05. For
# the other three the product itself has to be taken apart.
#
# `covered` is the share of communication with a product above it:

# %% tags=["check"]
from tpcourse.timeline import covered

assert set(covered(ranks["forward"]).values()) == {0.0}
assert all(abs(share - 2 / 3) < 1e-9 for share in covered(ranks["backward"]).values())

# %% [markdown]
# ## 2. Covered is not hidden
# An asynchronous call returns at once, with a *work*. On a GPU the call went into a queue of its own, a **stream**; products are in another
# one, and the GPU takes from both. `work.wait()` does not stop the Python program there: it leaves an **event** in the products' queue,
# behind which nothing runs before the call is over. On a CPU a thread sends, and `wait` stops the program.
#
# A product takes 2 ms, a gather 1 ms, both together, one over the other, 3.2 ms.
#
# **What share of the gather is covered, and what share of it is hidden?**

# %%
my_guess = ...

# %% [markdown]
# The two ways as timelines. The spans are made up, so that the numbers are round:

# %%
from tpcourse.timeline import Span, hidden


def spans(*times):
    lanes = ("compute", "product"), ("communication", "gather")
    return [Span(0, *lane, *pair) for lane, pair in zip(lanes, times)]


apart = spans((0.001, 0.003), (0, 0.001))
together = spans((0, 0.0032), (0, 0.0032))
E = round(hidden(3.2, 2, 3), 9)
draw.timelines({"one after the other": (apart, 0.0), "together": (together, E)})

# %% [markdown]
# All of it is covered, and less than nothing is hidden: the step got slower. They ran at the same time, and took from each other what both
# need. On a GPU that is memory bandwidth, and the multiprocessors (its cores) that NCCL's kernels occupy; on a CPU, the cores. A timeline shows who was
# busy, and to be busy is not to get on.
#
# So we count with the clock. $T_\text{product}$ is the product alone, unsplit; $T_\text{serial}$ has the communication before or behind it:
#
# $$E = 1 - \frac{T_\text{overlap} - T_\text{product}}{T_\text{serial} - T_\text{product}}$$
#
# $E = 1$ is as fast as if nothing were sent, 0 is as slow as one after the other, and below 0 you had better leave it. Here a real one: a
# gather beside a product of other numbers.

# %%
# %%px
from tpcourse.wire.torch_calls import all_gather_single

on_gpu = device.type == "cuda"
size, kind = (8192, torch.bfloat16) if on_gpu else (384, torch.float32)
piece, a, b = (torch.randn(size, size, dtype=kind, device=device) for _ in range(3))
whole = piece.new_empty(world_size * size, size)


def serial():
    all_gather_single(whole, piece, group=world)
    return a @ b


def overlapped():
    work = all_gather_single(whole, piece, group=world, async_op=True)
    c = a @ b
    work.wait()
    return c


# %% [markdown]
# `median_seconds` calls them by turns in random order, and takes the slowest rank's median.

# %%
# %%px
from tpcourse.ranks.timing import median_seconds

ways = {"product": lambda: a @ b, "serial": serial, "overlapped": overlapped}
repeats = 20 if on_gpu else 5
took = median_seconds(ways, repeats=repeats)
under = order(overlapped)

# %% [markdown]
# E on this machine; `None` if the product alone was not faster:

# %% tags=["nbval-ignore-output"]
took = ranks["took"][0]
hidden(took["overlapped"], took["product"], took["serial"])

# %% [markdown]
# On a CPU the figure can be anything: the thread that sends and the threads that multiply want the same cores, so nothing that follows is
# judged by a CPU's clock, and in the exercises E stays `blocked` there.
#
# On GPUs it is often near 0 here, though the program begins the gather first. Gather and product both wait for the call before, and the product,
# next in a queue that is running, can start before NCCL's kernel, which hears of it from another stream. A kernel of a bfloat16 product then holds all
# multiprocessors to its end, and NCCL's finds none free. On two H200 (torch 2.11, NCCL 2.28) we measured, not in the recordings, E between -0.1 and
# 0.1 for products like this one; in float64, whose kernels free one multiprocessor after the other, up to 0.2, and 0.7 once NCCL's kernels go first
# where one becomes free. Your ranks have set that (`TORCH_NCCL_HIGH_PRIORITY=1`), and the exercises are timed in float64. Section 3 has a carrier that needs no multiprocessor. What is the
# same on every machine is the order.

# %% tags=["check"]
assert E == -0.2 and covered(together) == {0: 1.0} and covered(apart) == {0: 0.0}
assert set(covered(ranks["under"]).values()) == {1.0}

# %% [markdown]
# ## 3. Gather + product, in pieces
# "The first product needs the gathered tokens."
#
# **Does it need all of them before it can begin? What does one row of $y = xW^\top$ need?**

# %%
my_guess = ...

# %% [markdown]
# A row needs its own token. So let tokens travel round a ring, as in lesson 01, and multiply each rank's when they are here. A step of the
# ring, begun and not waited for:

# %%
# %%px
def pass_on(outgoing, incoming):
    """Begin to send to the right and to receive from the left."""
    right, left = ((rank + way) % world_size for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, world)
    receiving = dist.P2POp(dist.irecv, incoming, left, world)
    return dist.batch_isend_irecv([sending, receiving])

# %% [markdown]
# And this is the version that circulates:

# %%
# %%px
def circulating(x, weight):
    y, now = [None] * world_size, x
    for step in range(world_size):
        y[(rank - step) % world_size] = F.linear(now, weight)
        if step < world_size - 1:
            coming = torch.empty_like(now)
            for work in pass_on(now, coming):
                work.wait()
            now = coming
    return torch.cat(y, 1)


seen = order(circulating, x.detach(), up.detach())

# %% [markdown]
# Right in every number, asynchronous, in pieces, with handles. Look at the order:

# %%
draw.order(ranks["seen"])

# %% [markdown]
# Nothing lies under anything. The send stands behind the product in the program, so on a GPU it stands behind it in the queues: NCCL's stream
# first waits for all that the products' stream was given until then. But the message needs nothing of the product. They only *read* the same
# tokens. And then the program waits for the message at once.
#
# One line has to move. Here is the course's version of both, as generators that hand out the parts: whatever is done with a part is done at
# `yield`. The popular one:

# %%
from tpcourse.overlap import popular, ring

show_source(popular.arriving)

# %% [markdown]
# And the ring that hides. Its message is under way when it hands out the part:

# %%
show_source(ring._arriving)

# %% [markdown]
# `gather_product` takes any of them by name:

# %%
# %%px
from tpcourse.overlap import gather_product

forms = ("serial", "popular", "ring")
gathers = {form: order(gather_product, x, up, tp=world, form=form) for form in forms}

# %% [markdown]
# The ring:

# %%
draw.order([one["ring"] for one in ranks["gathers"]])

# %% [markdown]
# Every message has a product above it, and one product is left: $p$ products hide $p - 1$ messages. Each message is one rank's tokens, $1/p$
# of $n$ bytes, and has a $p$-th of the product to hide under. With $r = T_\text{gather}/T_\text{product}$ all of it fits if
#
# $$\frac{r}{p-1} \le \frac1p, \qquad\text{and else}\qquad E \le \frac{p-1}{p\,r}$$
#
# Two things the ring has to keep in mind. A buffer in flight is read-only, for another rank is reading it. It is safe to write when its *send* was
# waited for; that a receive has ended says nothing of it. And on two ranks right and left are the same, so a ring turned the wrong way is right there,
# and wrong on four.
#
# On GPUs that reach each other's memory there is a better carrier. `peer` has every rank *write* its tokens into the others' memory with the
# GPU's copy engines, which take no multiprocessor from the products, and leave a signal behind each piece. The same generator, other
# messengers:

# %%
from tpcourse.overlap import peer

show_source(peer.arriving)

# %% [markdown]
# All four, recorded on two GPUs. The spans are those of one call under the profiler, so its launches and waits show. E is by the clock, with calls
# back to back, and the better of two: kernels launched one by one, or all at once as a captured CUDA graph. Launched one by one, the ring's E was
# -0.2. So the two numbers in a title are of two runs, and E may be the larger one: on rank 0 the profiled `peer` launched its product so late that
# the copy was already over.

# %% tags=["nbval-ignore-output"]
names = ("serial", "popular", "ring", "peer")
recorded = {name: draw.recorded_spans("gather_product", name) for name in names}
draw.timelines(recorded, "gather + product")

# %% [markdown]
# The check counts what is covered in each form:

# %% tags=["check"]
def shares(found):
    """Of each form: the shares that are covered on the ranks."""
    return {form: {round(min(covered(one[form]).values()), 9) for one in found} for form in found[0]}


assert shares(ranks["gathers"]) == {"serial": {0.0}, "popular": {0.0}, "ring": {1.0}}
assert set(covered(ranks["seen"]).values()) == {0.0}

# %% [markdown]
# ## 4. Product + scatter-sum, in pieces
# The second product leaves on every rank a part of the sum for *all* tokens, and each rank wants the whole sum for its own.
#
# **Whose tokens should a rank multiply first, and whose last? If a product adds to the sum that has come, what does it have to wait for?**

# %%
my_guess = ...

# %% [markdown]
# Every form, and the ring once more in one piece:

# %%
# %%px
from tpcourse.overlap import product_scatter

h = torch.randn(B, T, N, device=device)     # [B, T, F/p]
scatters = {form: order(product_scatter, h, down, tp=world, form=form) for form in forms}
one_piece = order(product_scatter, h, down, tp=world, form="ring", pieces=1)

# %% [markdown]
# The ring:

# %%
draw.order([one["ring"] for one in ranks["scatters"]])

# %% [markdown]
# Others' tokens first: what is for other ranks must leave, what is for this rank may wait. The sum for rank $c$ starts on rank $c + 1$ and goes
# round, and each rank adds its product to it as the product ends, with no pass of its own. But such a product needs the sum that it adds to.
# Passed on in one piece, it would be under way while everybody waits for it:

# %%
draw.order(ranks["one_piece"])

# %% [markdown]
# So it travels in two, and while one half is under way the other is multiplied. The source is the loop of a ring, with a loop over the
# pieces in it:

# %%
show_source(ring.scatter)

# %% [markdown]
# What circulates here is one `reduce` for each rank's tokens, begun asynchronously behind their product:

# %%
draw.order([one["popular"] for one in ranks["scatters"]])

# %% [markdown]
# By its order this one hides all but the last. Now look at who sends: the reduces in which a rank sends nothing, counted from its own.

# %%
# %%px
from tpcourse.ledger import ledger

with ledger() as log:
    product_scatter(h, down, tp=world, form="popular")
reduces = [event.bytes_sent for event in log.events]
[owner - rank for owner, num_bytes in enumerate(reduces) if num_bytes == 0]

# %% [markdown]
# In each reduce all ranks send towards one. The link into that rank carries $n/p$ bytes, and the links out of it nothing. The next reduce waits
# for this one. So $p$ of them take the time of $n$ bytes, where a reduce-scatter, in which every link is busy, takes that of $(p-1)/p\,n$:
#
# $$\frac{T_\text{reduces}}{T_\text{reduce-scatter}} = \frac{p}{p-1}$$
#
# Twice as long on two ranks, by the model, and $p$ starts in place of one. Order is necessary, and not enough. Only the clock tells:

# %% tags=["nbval-ignore-output"]
recorded = {name: draw.recorded_spans("product_scatter", name) for name in names}
draw.timelines(recorded, "product + scatter")

# %% [markdown]
# Covered, by order: nothing of `serial`, all of `ring`, and all but the last reduce of `popular`. In the picture too one of its two reduces is
# covered; the other is not, and the product beside the first takes 0.79 ms in place of 0.72. By the clock the whole is slower than one after the other:
# E is below 0. Of the ring's messages only 8 to 62 % are covered there. The queues of the GPU did not keep to the order of the program, and E is 0.06.

# %% tags=["check"]
found = shares(ranks["scatters"])
assert found["serial"] == {0.0} and found["ring"] == {1.0}
assert 0 < min(found["popular"]) < 1
assert set(covered(ranks["one_piece"]).values()) == {0.0}

# %% [markdown]
# ## 5. The same everywhere
# **A bucket of data parallelism (lesson 04), a gather of ZeRO's third stage (lesson 07): what can hide them, and which of them cannot be
# hidden?**

# %%
my_guess = ...

# %% [markdown]
# Four layers, a bucket for each; then the same as ZeRO 3 with prefetch. Forward and backward:

# %%
# %%px
from torch import nn

from tpcourse.data import DataParallel
from tpcourse.zero import Zero3


def stack():
    return nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4))).to(device)


tokens = torch.randn(8, 16, device=device)
replicated, sharded = stack(), stack()
DataParallel(replicated, dp=world, bucket_mb=0.001, first_bucket_mb=0.001)
zero = Zero3(sharded, layers=list(sharded), dp=world, bucket_mb=0.001, lr=0.1)
buckets = order(lambda: replicated(tokens).sum().backward())
prefetched = order(lambda: sharded(tokens).sum().backward())

# %% [markdown]
# Buckets:

# %%
draw.order(ranks["buckets"])

# %% [markdown]
# ZeRO 3:

# %%
draw.order(ranks["prefetched"])

# %% [markdown]
# The rule of section 1 once more. A gradient leaves under the backward of the layers before it, and a layer's weights come under the layer
# before. What has nothing beside it is exposed on any machine: the last bucket, behind which no product is left, and the first gather each
# way, before which there was none. So the last bucket should be small. That is hard where it holds a large embedding.
#
# What is exposed in time, recorded on two GPUs for a model of 8 layers and $D$ = 2048, with 16,384 tokens a rank:

# %% tags=["nbval-ignore-output"]
draw.exposed_times(*draw.recorded_exposed())

# %% [markdown]
# One after the other, communication is 4 % of forward and backward with buckets, and 7 % with ZeRO 3. Little of it is hidden, though nearly all is
# covered: our buckets' calls run under a product for 97 % of their time, and E is 0.05. With prefetch it is 0.25, for torch's DDP and `fully_shard` 0.10.
# A product beside NCCL's kernels is slower, by about what one after the other would have cost. The last three bars are the same buckets with kernels
# that take at most 4 multiprocessors (`max_ctas`). E is 0.62 now, and the time is 84.7 ms as before: one after the other got slower, so there was more
# to hide. So multiprocessors are not all that the two share; perhaps it is memory bandwidth. And slow messages are easily hidden, but nobody is faster
# for it. Read E beside the time.
#
# `gather_product` and `product_scatter` do the same in their own backward, and each is the other's: the gradient of a gather is a scatter-sum.
# So is all of it still one device's answer? The whole MLP, with rings, and gathered again in backward:

# %%
# %%px
def ring_mlp(x, up, bias, down, tp):
    how = {"tp": tp, "sequence_dim": 1, "overlap": "ring"}
    return row_linear(F.gelu(column_linear(x, up, bias, regather=True, **how)), down, **how)

# %% [markdown]
# `check.same` compares y and all gradients on 2, 3 and 4 ranks, where there are as many, in float64.

# %% tags=["check"]
from tpcourse import check


def one_device_mlp(x, up, bias, down):
    from torch.nn.functional import gelu, linear

    return linear(gelu(linear(x, up, bias)), down)


tokens = check.split(2, 12, 5, dim=1)
weights = {"up": check.split(24, 5, dim=0), "bias": check.split(24, dim=0), "down": check.split(5, 24, dim=1)}
compared = ["y", "dx", "dup", "dbias", "ddown"]
how = {"make": {"x": tokens, **weights}, "result": check.split(dim=1)}
check.same(ranks, "ring_mlp", one_device_mlp, compared, **how)

# %% [markdown]
# ## 6. How much, and where it loses
# "Overlap removes 40 % of tensor parallelism's communication cost."
#
# **Of which layer? For a product with 1,024 columns a rank, and for one with 14,336, on two GPUs: what is the most that can be hidden?**

# %%
my_guess = ...

# %% [markdown]
# $r$ of lesson 02 for bfloat16 at 700 TFLOP/s and 245 GB/s, about what each of two H200 reaches with large arrays, and the bound of section 3:

# %%
from tpcourse import costs

bounds = {}
for columns in (512, 1024, 4096, 14336):
    r = costs.overlap_ratio(2, columns, 700e12, 245e9)
    bounds[columns] = min(1.0, 1 / (2 * r))
    print(f"{columns:6,} columns a rank: r = {r:.2f}, E at most {bounds[columns]:.2f}")

# %% [markdown]
# The number of tokens is not in it, as long as there are many. The width that a rank is left with is. A narrow product is over before its tokens have
# come, and twice as many ranks leave each half as many columns. And $r$ knows nothing of what overlap itself costs: a product in $p$ parts is slower
# than a whole one, each part is a launch, and each message a start. So there is a size below which the plain way wins, and the tokens are in that.
#
# Measured, by shape: E of each way to do it, on two GPUs, launched one by one or as a graph, whichever is faster. `auto` chooses among ours, see
# below; `torch's fused` is torch's own operator. On most shapes `auto` takes `peer`, so how far the two lie apart is the noise: up to
# 0.2 in E on large shapes, where 2 % of the time is a fifth of what can be won.

# %% tags=["nbval-ignore-output"]
draw.hidden_by_shape(*draw.recorded_overlap("gather_product"))

# %% [markdown]
# And of product + scatter-sum:

# %% tags=["nbval-ignore-output"]
draw.hidden_by_shape(*draw.recorded_overlap("product_scatter"))

# %% [markdown]
# Here the ring gains next to nothing where the product is large, and on the three smaller shapes it is slower than one after the other: it has four
# small products in place of one and, we suppose, messages that wait for free multiprocessors. The copy engines hide at every shape. And the times
# themselves. A bar ends where the product alone would, so it is what there is to win; to the right of the line, overlap is slower than one after the
# other.

# %% tags=["nbval-ignore-output"]
draw.overlap_times(*draw.recorded_overlap("product_scatter"))

# %% [markdown]
# And on four GPUs? Recorded for the first shape of each kind: a rank multiplies as much as on two, and three quarters of the tokens are other ranks',
# not half.

# %% tags=["nbval-ignore-output"]
draw.by_ranks(*draw.recorded_scale("overlap"), ylabel="E")

# %% [markdown]
# Copies hide 0.85 and 0.79, where it was 0.87 and 0.96 on two; torch's fused operator, not drawn, hides 0.90 and 0.76. The ring takes 1.3 times as
# long as one after the other, and more: its messages are slower among four, and we have not measured why. What won on two ranks has lost on four.
#
# The same on your machine, for a small product and a larger one, as E:

# %%
# %%px
sizes = {"small": (256, 64, 64), "large": (2048, 512, 512)}     # [T, D] by [D, N]
if on_gpu:
    sizes = {"small": (512, 512, 512), "large": (8192, 8192, 14336)}


def timed(form, tokens, width, columns):
    whole = torch.randn(tokens, width, dtype=kind, device=device)
    part = whole[: tokens // world_size].clone()
    weight = torch.randn(columns, width, dtype=kind, device=device)
    if form == "product":
        return lambda: F.linear(whole, weight)
    return lambda: gather_product(part, weight, tp=world, form=form, sequence_dim=0)


ways = ("product", *forms, "auto")
calls = {(size, form): timed(form, *sizes[size]) for size in sizes for form in ways}
took = median_seconds(calls, repeats=repeats, in_a_row=2)

# %% [markdown]
# On a CPU `auto` is one after the other, so its E should be 0. What it is there is the noise:

# %% tags=["nbval-ignore-output"]
took = ranks["took"][0]
for size in ("small", "large"):
    product_s, serial_s = took[size, "product"], took[size, "serial"]
    for form in ("popular", "ring", "auto"):
        share = hidden(took[size, form], product_s, serial_s)
        print(size, form, "nothing to hide" if share is None else f"{share:.2f}")

# %% [markdown]
# **Verdict.** As a number it says nothing. E goes from below 0 to near 1, by width, by size, by the number of ranks, and by how it is written: near 1 is not
# 40 % but nearly all, and below 0 is a loss. Whoever quotes a share has to say of which product. And a share of the communication is not a
# share of the step: with $r = 0.2$, all of it hidden makes the step a sixth shorter. What was recorded of whole training steps:

# %% tags=["nbval-ignore-output"]
draw.four_panels(*draw.recorded_profile())

# %% [markdown]
# Losses and gradient norms of all modes have to lie on each other: overlap changes when things travel, not what is computed. And it bought
# nothing in this step: 29.3 ms without, 29.7 with. A profile of the same step (not in the recording) says why: the GPUs are busy for 26 ms of it
# without overlap and for 24 with it, and the CPU needs 28 to launch either. The step waits for the CPU, so what the GPUs save does not show. On four
# GPUs, with two layers of h 8192, overlap lost: 34.5 ms in place of 24.9, for the same reason. `auto` did not know then that launches grow with the
# ranks.
#
# To know in advance which way is best, `form="auto"` predicts each one's time, by the formula above with measured starts, and takes the
# shortest; outside a captured graph it counts the launches too, by the number of ranks. On a CPU, and for products as small as ours here, that is one after the other.

# %%
# %%px
chosen = order(gather_product, x, up, tp=world, form="auto")

# %% [markdown]
# The check looks at both, the bounds and the choice. And in the recorded runs, at the first shape of each kind, peer copies hide more than the
# popular version; on four GPUs they hide, and the ring hides nothing.

# %% tags=["check"]
assert bounds[512] < 0.25 < bounds[1024] < 0.5 < 1 == bounds[4096] == bounds[14336]
assert set(covered(ranks["chosen"]).values()) == {0.0}
for rows, _ in map(draw.recorded_overlap, ("gather_product", "product_scatter")):
    E = {row["variant"]: row["hidden"] for row in rows if row["shape"] == rows[0]["shape"]}
    assert not rows or E["peer"] > E["popular"]
four = draw.recorded_scale("overlap")[0]
assert all((line[4] > 0) == name.endswith("peer") for name, line in four.items())

# %% [markdown]
# ## 7. A timeline of your own run
# **In which part of a step, forward or backward, will your ranks wait the longest?**

# %%
my_guess = ...

# %% [markdown]
# `record` runs in each rank: on a GPU it takes the kernels of torch's profiler apart into computing and communicating, elsewhere it takes the
# ledger's calls, and what lies between them as computing.

# %%
# %%px
from tpcourse import timeline

x, up, down = leaves(T=512 * world_size, D=256, N=512)
spans = timeline.record(lambda: mlp(x, up, down, "ring").sum().backward())

# %% [markdown]
# All ranks, on one clock:

# %%
draw.timeline(ranks["spans"])

# %% [markdown]
# Look for the longest place where a rank has a message and no product: is it in the part that you guessed? For more than a look the picture is too
# coarse. Written to a file, the same spans open in the browser, at `ui.perfetto.dev`, where you can zoom in to a microsecond; the file
# stays on your machine:

# %%
from pathlib import Path
from tempfile import mkdtemp

from tpcourse.timeline import write_trace

trace = write_trace(ranks["spans"], Path(mkdtemp()) / "overlap.json")
trace.name

# %% [markdown]
# Two warnings. A profiler costs time itself, so it is for finding *where*; *how much* is for the clock, with nobody watching. And NCCL's kernels wait
# on the GPU for the other ranks: a long bar of communication is often a rank that came early.

# %% tags=["check"]
from json import loads
from shutil import rmtree

events = loads(trace.read_text())["traceEvents"]
assert {event["pid"] for event in events} == set(range(len(ranks)))
assert {event.get("cat", "compute") for event in events} == {"compute", "communication"}
rmtree(trace.parent)

# %% [markdown]
# ## You saw
# You saw that a collective can be hidden under a product that does not need it, and that cutting both makes such a product where there is none.
# Begin early, multiply what is here, wait late. Values are right in every order, so no test of values tells; what is covered is not yet hidden;
# and what has no product beside it, such as the last bucket, stays exposed.
#
# In the exercises (`exercises/08_overlap.ipynb`) you write both rings and a backward in the right order, and find out why one that looks like
# overlap hides nothing.
#
# **One case that fails.** Messages that are hidden cost no time. Do they cost nothing at all? What a rank still holds of the tokens when a
# gather + product is over, as a multiple of what it brought:

# %%
# %%px
from tpcourse import memory

kept = memory.saved(gather_product, x, up, tp=world, form="ring", parameters=[up]).bytes
times = kept / x.nbytes

# %% [markdown]
# If hiding made them free, it would hold its own tokens and no more:

# %% tags=["raises-exception"]
times = ranks["times"]
assert times == [1.0] * len(ranks), "every rank holds the tokens of all ranks"

# %% [markdown]
# Time was hidden, memory was not. A rank can keep its own tokens alone and gather again, for one more gather; but while a product runs, there is room
# for all of them. Attention needs all tokens of a sequence at once, and a sequence that is long enough fits on no rank.
# Lesson 09, still to be written, lets the ring carry keys and values, and no rank ever holds them all.
