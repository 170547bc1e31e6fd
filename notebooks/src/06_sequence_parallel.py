# %% [markdown]
# # 06 Sequence parallel
# **After this you can divide what tensor parallelism leaves whole, for the bytes that it sends already, and keep gradients, masks and
# losses right while you do.** About 45 minutes; uses lessons 03 and 05.
#
# Lesson 05 ended with an assertion that failed: a rank has a $p$-th of the weights, and keeps more than a $p$-th of the activations. Norms,
# dropouts and residuals are whole on every rank. Here they are divided too.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. What is still whole
# A block keeps $34 + 5HT/D$ bytes for its backward, in units of $BTD$, and tensor parallelism leaves 10 of the 34 whole.
#
# **Which tensors are those ten? On two ranks, with selective recompute, which part of what a rank keeps do they make up? And on eight?**

# %%
my_guess = ...

# %% [markdown]
# The block of lesson 05, with everything that the formula counts. Each rank weighs it twice: as one device would hold it, and as a
# rank holds its part.

# %%
# %%px
from tpcourse import memory
from tpcourse.block import GPT, GPTConfig

classic = {"norm": "layer", "mlp": "gelu", "bias": True, "rotary": False, "attention": "unfused"}
config = GPTConfig(V=256, T=48, D=192, H=24, L=1, dropout=0.1, **classic)


def kept(T=config.T, **how):
    """What one block keeps for backward, of T tokens on this rank."""
    model = GPT(config, dtype=torch.bfloat16, device=device, **how)
    x = torch.randn(2, T, config.D, dtype=torch.bfloat16, device=device, requires_grad=True)
    return memory.saved(model.blocks[0], x, model.new_pass(config.T))


one, tp = kept(), kept(tp=world)

# %% [markdown]
# Each piece of a bar is one storage, in the order of the forward:

# %%
unit = 2 * 48 * 192                                                     # B T D
draw.activations({"TP": (ranks["tp"][0], ranks["one"][0])}, unit, len(ranks))

# %% [markdown]
# The dark ones:
#
# | whole on every rank | in units of $BTD$ |
# |---|---|
# | the inputs of two norms | 4 |
# | the inputs of the two products that are cut by columns | 4 |
# | two dropout masks | 2 |
#
# They are $D$ wide, and $D$ is what tensor parallelism does not cut. From the sum behind one product to the next product, all ranks have the
# same numbers and do the same with them: $p$ times the work, for $p$ copies of the result.
#
# $$34 + 5\frac{HT}{D} \;\to\; 10 + \frac{1}{p}\Big(24 + 5\frac{HT}{D}\Big)$$
#
# So the more ranks, the larger their share. With selective recompute, which keeps no scores (lesson 03):

# %%
from tpcourse.memory import activation_bytes

for p in (2, 8):
    total = activation_bytes(1, 2048, 4096, 32, recompute="selective", tp=p)
    print(f"{p} ranks: {10 * 2048 * 4096 / total:.0%} of what a rank keeps is whole")

# %% [markdown]
# The check counts the bars against the table, and a rank's total against the formula.

# %% tags=["check"]
one, tp = ([k.bytes / unit for k in ranks[name][0].kept if not k.is_parameter] for name in ("one", "tp"))
whole = [a for a, b in zip(one, tp, strict=True) if a == b]
assert [size for size in whole if size >= 1] == [2, 2, 1, 2, 2, 1] and 10 <= sum(whole) < 10.1
said = activation_bytes(2, 48, 192, 24, tp=len(ranks)) / unit
assert abs(sum(tp) / said - 1) < 0.01

# %% [markdown]
# ## 2. Cut the all-reduce open
# Dropout, residual and norm work on each token by itself. So a rank could do them for $T/p$ of the tokens, and leave the rest to the others.
#
# **Then it needs the sum of its own tokens only. But the next product needs all tokens again. How many times the bytes of the all-reduce does
# that take, and how many times the calls?**

# %%
my_guess = ...

# %% [markdown]
# `partial` is this rank's part of a sum, as a product that is cut by rows leaves it. First closed, as in lesson 05, then open.

# %%
# %%px
from torch.nn import functional as F

from tpcourse import wire
from tpcourse.ledger import ledger

torch.manual_seed(0)
residual = torch.randn(2, 48, 192, dtype=torch.float64).to(device)      # [B, T, D], the same on every rank
partial = residual * (rank + 1)                                         # [B, T, D]
with ledger() as closed:
    y = F.layer_norm(residual + wire.all_reduce(partial, group=world), (192,))
with ledger() as opened:
    mine = wire.reduce_scatter(partial, group=world, dim=1)             # [B, T/p, D]
    normed = F.layer_norm(residual.chunk(world_size, 1)[rank] + mine, (192,))
    again = wire.all_gather(normed, group=world, dim=1)                 # [B, T, D]
torch.allclose(y, again), opened.bytes_sent / closed.bytes_sent, opened.num_calls / closed.num_calls

# %% [markdown]
# The same bytes, in twice the calls. An all-reduce *is* a reduce-scatter and an all-gather (lesson 01). Between the two a rank holds the complete
# sum of its own tokens, and a norm asks for no more.
#
# Backward goes the same way back. Each half is the other's adjoint, so where forward gathers, backward scatters a sum:
#
# | | forward | backward |
# |---|---|---|
# | behind a product by rows | reduce-scatter | all-gather |
# | before a product by columns | all-gather | reduce-scatter |
#
# This is Megatron's sequence parallelism (arXiv:2205.05198, section 4.2.2). Here is the first line of the table, as it runs. `tokens` knows how
# many tokens each rank has. `FORMS["serial"]` is torch's collective, before or behind the product; lesson 08 has other forms.

# %%
from tpcourse.overlap.scatter import ProductScatter

show_source(ProductScatter)

# %% [markdown]
# Now the whole block. `sequence_parallel=True` tells the products along which dim tokens are cut, and changes nothing else.

# %%
# %%px
def sent(config=config, **how):
    """The calls of one block, forward and backward."""
    model, pieces = GPT(config, tp=world, device=device, **how), world_size if how else 1
    x = torch.randn(2, config.T // pieces, config.D, device=device, requires_grad=True)
    with ledger() as forward:
        y = model.blocks[0](x, model.new_pass(config.T))
    with ledger() as backward:
        y.sum().backward()
    return forward, backward


forward, backward = sent()
sp_forward, sp_backward = sent(sequence_parallel=True)
(sp_forward.bytes_sent + sp_backward.bytes_sent) / (forward.bytes_sent + backward.bytes_sent)

# %% [markdown]
# The forward of the block, with all-reduces:

# %%
draw.messages(ranks["forward"])

# %% [markdown]
# And with the pair:

# %%
draw.messages(ranks["sp_forward"])

# %% [markdown]
# Two calls have become four, and each sends half. Backward does the same.
#
# "Sequence parallelism doubles communication, so it pays only in attention." The bytes we have seen. But a call costs something before its first
# byte, the $\alpha$ of lesson 02.
#
# **Where will you notice twice the calls: in a block with many tokens, or with few?**

# %%
my_second_guess = ...

# %% [markdown]
# Forward and backward of a block, with the pair and with all-reduces, for 24, 96 and 384 tokens.

# %%
# %%px
from dataclasses import replace

from tpcourse.ranks.timing import median_seconds


def step(T, **how):
    model = GPT(replace(config, T=T, attention="fused"), tp=world, device=device, **how)
    x = torch.randn(1, T // world_size if how else T, 192, device=device, requires_grad=True)
    here = model.new_pass(T)
    return lambda: model.blocks[0](x, here).sum().backward()


ways = {"all-reduce": {}, "pair": {"sequence_parallel": True}}
calls = {(way, T): step(T, **how) for way, how in ways.items() for T in (24, 96, 384)}
took = median_seconds(calls, repeats=5, in_a_row=1)

# %% [markdown]
# The blocks of a run that was recorded on GPUs are drawn beside yours.

# %% tags=["nbval-ignore-output"]
took = ranks["took"][0]
here = {4 * 192 * T: took["pair", T] / took["all-reduce", T] for T in (24, 96, 384)}
draw.pair_ratio({"this machine": here} | draw.recorded_pairs(), "forward and backward of a block")

# %% [markdown]
# With few: a call's own price does not grow with the tokens. With many the pair has something to win: dropouts, residuals and norms are
# computed once, and not $p$ times. On the GPUs, where the layers get wider too, it comes to within 4 % and does not win.
#
# On a CPU something else lies on top, at all sizes. Torch's gloo makes a reduce-scatter of an all-reduce, and throws away what belongs to
# the other ranks (`ProcessGroupGloo::reduce_scatter_tensor_coalesced`). The ledger counts what the best algorithm sends; gloo sends more.
# In section 6 you time messages of our own, in which nothing is hidden.
#
# **Verdict.** It doubles the calls, 8 for 4, which costs what your curve shows; the bytes are equal to the last one. And attention is where it
# does nothing: heads are cut already. What it divides lies outside, in norms, dropouts and residuals.

# %% tags=["check"]
# %%px
def counts(log):
    return {op: log.count(op) for op in ("all_reduce", "all_gather", "reduce_scatter") if log.count(op)}


pair = {"all_gather": 2, "reduce_scatter": 2}
assert torch.allclose(y, again) and counts(forward) == counts(backward) == {"all_reduce": 2}
assert counts(sp_forward) == counts(sp_backward) == pair
assert sp_forward.bytes_sent == forward.bytes_sent == sp_backward.bytes_sent == backward.bytes_sent

# %% [markdown]
# ## 3. Whole weights, part of the tokens
# The scale of a norm is whole on every rank, and so is the bias behind a product by rows. Until now every rank sent all tokens through them.
#
# **Now each sends $T/p$ through. Backward is done: which gradients are not what one device has? Would you mend them by a sum, or by an
# average?**

# %%
my_guess = ...

# %% [markdown]
# A GPT with one block, in float64, on the text of lesson 05. Each rank also plays the one device; `shards` knows which part of a weight is here.

# %%
# %%px
from tpcourse.train import batch, source_tokens

text = source_tokens(100_000).to(device)
small = GPTConfig(V=256, T=24, D=48, H=24, L=1, **classic | {"rotary": True})


def backward_of(**how):
    model = GPT(small, dtype=torch.float64, device=device, **how)
    model.loss(*batch(text, 4, 24, step=0)).backward()
    return model


def wrong(model):
    pairs = zip(model.named_parameters(), alone.parameters(), strict=True)
    return [n for (n, w), a in pairs if not torch.allclose(w.grad, model.shards[n].cut(a.grad))]


alone, split = backward_of(), backward_of(tp=world, sequence_parallel=True)
before = wrong(split)
print(*before, sep="\n")

# %% [markdown]
# Every weight that is whole: scales and shifts of the norms, and the two biases that are added behind a sum. All that is cut is right. A scale
# $g$ meets every token, so its gradient is a sum over tokens, and a rank has seen its own:
#
# $$dg = \sum_t dy_t\, \hat x_t = \sum_r \underbrace{\sum_{t \,\in\, r} dy_t\, \hat x_t}_{\text{on rank } r}$$
#
# So it is a sum. Lesson 04 took the average, because there each rank had a loss of its own. Here all ranks share one loss, the mean over all
# tokens, and the $1/BT$ is in $dy_t$ already. These weights are small, so all of them travel in one call, once a step:

# %%
from tpcourse.sequence import sum_gradients

show_source(sum_gradients)

# %% [markdown]
# `finish_gradients` gives it the gradients of all weights that the model's table calls whole.

# %%
# %%px
from tpcourse.block import finish_gradients

with ledger() as log:
    finish_gradients(split)
wrong(split), log.num_calls

# %% [markdown]
# One call, and none is wrong. What if one forgets it? Twenty steps of Adam on one device, with the sum, and without.

# %%
# %%px
def train(finish=finish_gradients, **how):
    model, losses = GPT(small, dtype=torch.float64, device=device, **how), []
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(20):
        adam.zero_grad()
        loss = model.loss(*batch(text, 8, 24, step=step))
        loss.backward()
        finish(model)
        adam.step()
        losses.append(loss.item())
    return losses, model


one_device, _ = train()
with_sum, good = train(tp=world, sequence_parallel=True)
without, bad = train(lambda model: None, tp=world, sequence_parallel=True)

# %% [markdown]
# Both beside the curve of one device:

# %%
draw.loss_curve({"with the sum": ranks["with_sum"][0], "without": ranks["without"][0]}, ranks["one_device"][0], V=256)

# %% [markdown]
# The loss falls all the same. Without one device's beside it you would not find this mistake in the curve. Look at the weights that should be equal on all ranks.

# %%
# %%px
def apart(model):
    """The whole weights that differ between ranks."""
    whole = {n: w.detach() for n, w in model.named_parameters() if model.shards[n].layout == "whole"}
    off = {n: (w - wire.broadcast(w, group=world)).abs().max() for n, w in whole.items()}
    return [n for n, most in off.items() if wire.all_reduce(most, group=world, op="max") > 0]


len(apart(good)), len(apart(bad))

# %% [markdown]
# All eight have drifted apart. The start of a sequence is now scaled by other numbers than its end, because other ranks hold those tokens. On the
# day you save one copy, or go on at another number of ranks, it is another model. So compare gradients with one device, before the first step.

# %% tags=["check"]
# %%px
assert before == [n for n in split.shards if split.shards[n].layout == "whole"] == apart(bad) and len(before) == 8
assert wrong(split) == apart(good) == [] and log.num_calls == 1
errors = [max(abs(a - b) for a, b in zip(one_device, losses)) for losses in (with_sum, without)]
assert errors[0] < 1e-10 < 1e-6 < errors[1] and sum(without[-5:]) / 5 < without[0] - 1

# %% [markdown]
# ## 4. Bytes, before and after
# Norms, masks and residuals of a block are now those of $T/p$ tokens, and what lies inside attention and MLP was cut before.
#
# **Does a rank keep exactly $1/p$ of what one device keeps? If not, what is still whole?**

# %%
my_guess = ...

# %% [markdown]
# Weighed as in section 1, now with sequence parallelism (SP). `regather` is explained below; `selective` computes the core of attention again.

# %%
# %%px
piece = {"T": config.T // world_size, "tp": world, "sequence_parallel": True}
sp, regathered = kept(**piece), kept(**piece, regather=True)
one_selective, selective = kept(recompute="selective"), kept(**piece, regather=True, recompute="selective")
weighed = {"TP": (tp, one), "TP + SP": (sp, one), "... gather again": (regathered, one)}
weighed |= {"... and selective": (selective, one_selective)}

# %% [markdown]
# Bars as in section 1; the mark is a $p$-th of one device's:

# %%
draw.activations(ranks["weighed"][0], unit, len(ranks))

# %% [markdown]
# Not yet: in TP + SP four of 34 are dark. They are the inputs of the two products by columns, as they were gathered. $dW = dy^\top x$ needs
# the $x$ of all tokens, so autograd keeps what it multiplied with. The piece that this rank gave would be enough, if backward gathered the
# others once more. That is `regather`:

# %%
from tpcourse.overlap.gather import GatherProduct

show_source(GatherProduct)

# %% [markdown]
# With it nothing is dark, and the bar ends at the mark:
#
# $$\frac{1}{p}\Big(34 + 5\frac{HT}{D}\Big), \qquad \frac{34}{p} \text{ with selective recompute}$$
#
# What does it cost? Bytes and calls of forward and backward, over those without:

# %%
# %%px
def both(**how):
    logs = sent(sequence_parallel=True, **how)
    return sum(log.bytes_sent for log in logs), sum(log.num_calls for log in logs)


plain, more = both(), both(regather=True)
[a / b for a, b in zip(more, plain)]

# %% [markdown]
# A quarter more: ten halves of an all-reduce for eight, one call for each product by columns. The code above starts that call before the
# product for $dx$ and waits behind it, so on a GPU it has something to hide behind. It is a choice, as recompute is; take it where bytes
# are short.
#
# Now a layer of real size, 4,096 wide with 32 heads and 2,048 tokens, on two ranks: by the formulas that the picture has just confirmed,
# over one device.

# %%
layer, with_sp = (1, 2048, 4096, 32), {"sequence_parallel": True}
again, ways = "TP + SP, gather again", {"TP": {}, "TP, selective": {"recompute": "selective"}}
ways |= {again: with_sp, f"{again}, selective": with_sp | ways["TP, selective"]}
for way, how in ways.items():
    share = activation_bytes(*layer, tp=2, **how) / activation_bytes(*layer)
    print(f"{way:34}{share:.3f}")

# %% [markdown]
# Without recompute the scores of attention are most of it. Heads cut them, so on two ranks sequence parallelism has little left to save.
# Selective recompute takes the scores away, and then ten whole ones of 34 are felt: nearly a quarter of what was left goes, at no price in
# operations, for the quarter more of bytes sent.

# %% tags=["check"]
p, weighed, errors = len(ranks), ranks["weighed"][0], []
hows = {"TP": {}, "... gather again": with_sp, "... and selective": with_sp | {"recompute": "selective"}}
for name, how in hows.items():
    errors.append(weighed[name][0].bytes / activation_bytes(2, 48, 192, 24, tp=p, **how) - 1)
assert all(abs(error) < 0.01 for error in errors)
assert weighed["TP + SP"][0].bytes - weighed["... gather again"][0].bytes == 4 * unit * (p - 1) // p
assert [a / b for a, b in zip(ranks["more"][0], ranks["plain"][0], strict=True)] == [10 / 8, 10 / 8]
before, after = (activation_bytes(*layer, tp=2, recompute="selective", **how) for how in ({}, with_sp))
assert 0.2 < 1 - after / before < 0.25

# %% [markdown]
# ## 5. Sharded, not tiled
# Up to now $p$ divided $T$. Texts do not care.
#
# **Twenty-five tokens. Every rank takes a tile of $\lfloor 25/p \rfloor$ of them. What goes wrong, and what tells you?**

# %%
my_guess = ...

# %% [markdown]
# The tokens are numbered. First tiles of equal size; then shards, through the doors of `tpcourse.sequence`: `enter` takes this rank's
# tokens, `leave` brings all together.

# %%
# %%px
from tpcourse.sequence import enter, leave, token_sizes

numbers, tile = torch.arange(25.0, device=device), 25 // world_size
tiled = wire.all_gather(numbers[rank * tile : (rank + 1) * tile], group=world)
sharded = leave(enter(numbers, tp=world, dim=0), tp=world, dim=0, num_tokens=25)
sizes = token_sizes(25, tp=world)
len(tiled), len(sharded), max(sizes) - min(sizes)

# %% [markdown]
# The last token is gone, and nothing tells you. The loss is a mean over twenty-four tokens and looks like any other. Tiles of the next size up
# are no better: the last ones are filled up with zeros, the norm turns a zero into its shift, and so on, until it is part of the loss.
#
# Shards differ by one token at most, the longer ones first. They travel padded to the longest, because a gather wants equal pieces, and are cut
# to size where they arrive. For that all ranks must know $T$, hence `num_tokens`.

# %%
from tpcourse.sequence import token_sizes

show_source(token_sizes)

# %% [markdown]
# Unequal pieces bring back a mistake of lesson 04.
#
# **Each rank takes the mean loss of its own tokens, and the ranks average. Is that the mean over the twenty-five?**

# %%
my_second_guess = ...

# %% [markdown]
# A model of one vector. `means` averages the ranks' means; `sums` adds up their sums and divides by 25.

# %%
# %%px
torch.manual_seed(0)
x, weight = torch.randn(25, 5, dtype=torch.float64).to(device), torch.ones(5, dtype=torch.float64).to(device)
losses = (enter(x, tp=world, dim=0) @ weight).tanh()                    # [T_r]
means = wire.all_reduce(losses.mean(), group=world, op="avg")
sums = wire.all_reduce(losses.sum(), group=world) / 25
whole = (x @ weight).tanh().mean()
torch.isclose(means, whole).item(), torch.isclose(sums, whole).item()

# %% [markdown]
# No: a token in a shorter piece counts more. Means do not add up; sums do, and counts do. (Our GPT never meets the question. Its head is
# cut by the vocabulary, so it gathers all tokens first, and each rank has the loss of all.)
#
# One more thing belongs to a rank's own tokens: what dropout drops.
#
# **In lesson 05 all ranks had the same mask behind a product by rows. What does that mask do now, and what should it be?**

# %%
my_third_guess = ...

# %% [markdown]
# `Seeds.shared` draws from seed, place and step, `Seeds.own` from the rank too. How many ranks kept each element of their pieces?

# %%
# %%px
from tpcourse.sequence import Seeds, dropout

seeds = Seeds(0, tp=world, device=device)


def kept_by(generator):
    mask = dropout(torch.ones(4, 100, device=device), 0.5, generator) > 0
    return wire.all_reduce(mask.long(), group=world)


shared, own = kept_by(seeds.shared("out", step=0)), kept_by(seeds.own("out", step=0))
[bool((number % world_size == 0).all()) for number in (shared, own)]

# %% [markdown]
# The shared mask drops the same places of every piece: all ranks or none. That was right while the pieces were copies. Now they are
# different tokens, and one mask for all of them is $p$ times less random.
#
# | dropout | tensor parallel | with sequence parallel |
# |---|---|---|
# | of the scores in attention | own: other heads | own: other heads |
# | behind a product by rows | shared: the same tokens | own: other tokens |

# %% tags=["check"]
# %%px
assert torch.equal(sharded, numbers) and torch.equal(tiled, numbers[:24]) and sum(sizes) == 25
assert abs(means / whole - 1) > 1e-3 and torch.isclose(sums, whole)
assert (shared % world_size == 0).all() and not (own % world_size == 0).all()

# %% [markdown]
# ## 6. What it is not
# "Sequence parallelism gathers all K and V before attention." You can read that in many places.
#
# **A block with 24 heads for queries and one for K and V, each 8 wide; a token is 192 wide. How wide would gathered K and V be? How wide
# is what the block gathers?**

# %%
my_guess = ...

# %% [markdown]
# The ledger notes the shape of every piece; the last number is its width. Beside it: the tokens of q and of k that attention sees on this rank.

# %%
# %%px
grouped = replace(config, kv_heads=1)
log, _ = sent(grouped, sequence_parallel=True)
widths = [event.shape[-1] for event in log.events if event.op == "all_gather"]

model = GPT(grouped, tp=world, sequence_parallel=True, device=device)
x = torch.zeros(2, config.T // world_size, 192, device=device)
q, k, _ = model.new_pass(config.T).qkv(x, model.blocks[0].attention.qkv)
widths, q.shape[1], k.shape[1]

# %% [markdown]
# K and V would be 16 wide together. Both gathers are 192, each before a product by columns. The first brings activations, and out of them
# this rank makes q, k and v of **all** 48 tokens, for its own heads. K and V are never sent.
#
# What the sentence describes exists, under another name:
#
# | | sequence parallel | context parallel (lesson 09, to come) |
# |---|---|---|
# | attention on a rank | all tokens, its heads | its tokens, all heads |
# | gathered | activations, $D$ wide | K and V |
# | divides | what is outside of attention | attention over a long sequence |
#
# **Verdict.** That is context parallelism. Sequence parallelism gathers what is $D$ wide before the products by columns, one of the two for
# the MLP, where there is no K at all. And each rank still has scores of $T \times T$ for its heads: a sequence that is too long for one rank stays
# too long.

# %% tags=["check"]
# %%px
assert widths == [config.D, config.D] == [192, 192] and 2 * grouped.kv_heads * grouped.K == 16
assert q.shape[1] == k.shape[1] == config.T and q.shape[2] == config.H // world_size

# %% [markdown]
# One claim is about speed: "above TP 4 the gather/scatter pair is faster than the all-reduce pair." Lesson 05 counted its bytes, and found
# them equal.
#
# **Count the messages too, in a ring (lesson 01). From which number of ranks on does the pair have fewer?**

# %%
my_second_guess = ...

# %% [markdown]
# The pair's time over the all-reduce's by the model of lesson 02, for 2, 4, 8 and 64 ranks, and for 1 kB and 100 MB each:

# %%
from tpcourse import costs


def modelled(p, n, link="NVLink 4"):
    parts = sum(costs.seconds(op, n, p, link) for op in ("reduce_scatter", "all_gather"))
    return parts / costs.seconds("all_reduce", n, p, link)


[round(modelled(p, n), 9) for p in (2, 4, 8, 64) for n in (1e3, 1e8)]

# %% [markdown]
# From none: as rings they are the same messages. Now with a clock, on the first 2 of your ranks and on all: torch's three calls, and the
# rings of lesson 01.

# %%
# %%px
groups = {p: dist.new_group(list(range(p))) for p in sorted({2, world_size})}
kinds = {"torch's": (wire.all_reduce, wire.reduce_scatter, wire.all_gather)}
kinds["our ring"] = wire.ring_all_reduce, wire.ring_reduce_scatter, wire.ring_all_gather


def timed(kind, way, p, n):
    """The call for ranks 0 to p - 1, nothing for the others."""
    x, group, (reduce, scatter, gather) = torch.randn(n, device=device), groups[p], kinds[kind]
    pair = way == "pair"
    call = (lambda: gather(scatter(x, group=group), group=group)) if pair else (lambda: reduce(x, group=group))
    return call if rank < p else lambda: None


keys = [(kind, way, p, n) for kind in kinds for way in ways for p in groups for n in (768, 12_288, 196_608)]
took = median_seconds({key: timed(*key) for key in keys}, repeats=9, in_a_row=2)

# %% [markdown]
# Nothing is computed between the halves, so only the calls are timed:

# %% tags=["nbval-ignore-output"]
took, curves = ranks["took"][0], {}
for kind, _, p, n in took:
    ratio = took[kind, "pair", p, n] / took[kind, "all-reduce", p, n]
    curves.setdefault(f"{kind}, {p} ranks", {})[4 * n] = ratio
draw.pair_ratio(curves, "the calls alone")

# %% [markdown]
# And around the products of an MLP, forward and backward, recorded on four GPUs in groups of two and of four:

# %% tags=["nbval-ignore-output"]
draw.by_ranks(*draw.recorded_scale("pair"), ylabel="pair / all-reduce")

# %% [markdown]
# **Verdict.** Nothing in the count changes at 4: the ratio is 1 at 2 ranks, at 4 and at 64. On GPUs the pair is the slower one at every width: with h 8192
# by 4 % on two and 12 % on four, with h 4096 by 11 and 20 %, with h 2048 by 72 and 60 %. So 4 is no threshold: two of the lines rise and one falls, and
# we have not measured why. Rings send what was counted, so their curves should lie about 1 on any number of ranks, as well as a busy machine can
# tell. Torch's need not. Gloo's reduce-scatter sends more, and NCCL's two calls take 1.2 times its all-reduce for 1 GiB on two GPUs and 1.08 times on
# four: measure yours. We can say nothing of more ranks than
# were there. What does get better with $p$ is the work between the halves, which is divided by $p$.

# %% tags=["check"]
assert all(abs(modelled(p, n) - 1) < 1e-9 for p in range(2, 65) for n in (1e3, 1e6, 1e8))
assert all(len(curve) == 3 and min(curve.values()) > 0 for curve in curves.values())

# %% [markdown]
# ## 7. Against one device
# **Train a GPT for ten steps on one device, and with all of this lesson: uneven pieces, gathered again, fewer K/V heads than ranks. In
# float64, how far apart are the losses, and the weights at the end?**

# %%
my_guess = ...

# %% [markdown]
# `Trainer` is that of lesson 05; it calls `finish_gradients` before it clips.

# %%
# %%px
from tpcourse.block import to_one_device
from tpcourse.train import Trainer

modern = GPTConfig(V=256, T=25, D=48, H=24, kv_heads=1, L=2)


def trained(tp=None, **how):
    model = GPT(modern, tp=tp, dtype=torch.float64, device=device, **how)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = Trainer(model, adam, text, num_sequences=8, length=25, tp=tp).advance(10)
    return torch.tensor(losses), to_one_device(model)


alone, weights_alone = trained()
ours, weights = trained(tp=world, sequence_parallel=True, regather=True)
largest = max((weights[name] - weights_alone[name]).abs().max().item() for name in weights)
(ours - alone).abs().max().item() < 1e-10, largest < 1e-10

# %% [markdown]
# Rounding apart, they are equal. Where tensors lie, and who computes what, is placement. A placement that changes the numbers has a mistake
# in it, and now you know four: the sum forgotten, the token lost, the mean of means, the shared mask.

# %% tags=["check"]
# %%px
assert (ours - alone).abs().max() < 1e-10 and largest < 1e-10 and ours[-1] < ours[0] - 0.5

# %% [markdown]
# ## You saw
# You saw the ten of 34 that tensor parallelism leaves whole, and an all-reduce cut open to divide them: the same bytes, twice the calls. A
# whole weight that sees part of the tokens has part of a gradient, and one call a step adds the parts up. Gathering twice, a rank keeps its
# $p$-th part of everything.
#
# In the exercises (`exercises/06_sequence_parallel.ipynb`) you write the doors, a whole block, the forgotten sum, the second gather and
# uneven pieces.
#
# **One case that fails.** Weights and activations are divided within a `tp` group, and that ends where the fast links end (lesson 02).
# Beyond stand data-parallel copies. Let each of your ranks be one: what does it hold after a step of Adam?

# %%
# %%px
copy = GPT(small, device=device)
adam = torch.optim.Adam(copy.parameters())
copy.loss(*batch(text, 4, 24, step=rank)).backward()
adam.step()
held = memory.held(copy, adam)
states = held["parameter"] + held["gradient"] + held["moment"]
states / held["parameter"]

# %% [markdown]
# Four times its weights, in float32. One model is trained, so if the copies shared what they all hold, together they would hold that once:

# %% tags=["raises-exception"]
states = ranks["states"]
assert sum(states) == states[0], "every rank holds all weights, all gradients and all of Adam's moments"

# %% [markdown]
# Every copy holds all of it, and all copies hold the same. Lesson 07 gives each rank a part of the states to look after.
