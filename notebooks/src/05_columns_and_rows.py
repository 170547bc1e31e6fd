# %% [markdown]
# # 05 Columns and rows
# **After this you can split every weight of a transformer over ranks, say what each split owes in forward and in backward, and train
# the result as if it were one device.** About 60 minutes; uses lessons 01, 03 and 04.
#
# Lesson 04 left the whole model on every rank. Here a rank holds a part of each large weight, and all ranks work on the same
# examples: *tensor parallelism*. Its group is called `tp`; in this lesson it is all ranks, `tp=world`.

# %%
from tpcourse import check, draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. Two ways to cut a product
# A layer computes $y = xW^\top$. Every rank gets a $p$-th of the matrix $W^\top$: some of its columns, or some of its rows.
#
# **Each rank multiplies with what it has. For each cut, does it then hold some of the numbers of $y$, or a part of every
# number?**

# %%
my_guess = ...

# %% [markdown]
# `piece` is this rank's part of a tensor that all ranks know. Weights are [F, D] as in torch, so columns of $W^\top$ lie along dim 0.

# %%
# %%px
from torch.nn import functional as F

from tpcourse import wire
from tpcourse.dims import split_range, split_sizes


def piece(whole, dim):
    start, end = split_range(whole.shape[dim], world_size, rank)
    return whole.narrow(dim, start, end - start)


torch.manual_seed(0)
x, weight, dy = (torch.randn(n, d, dtype=torch.float64).to(device) for n, d in ((5, 12), (18, 12), (5, 18)))
by_columns = x @ piece(weight, 0).T                     # [N, F/p]
by_rows = piece(x, 1) @ piece(weight, 1).T              # [N, F]
joined = wire.all_gather(by_columns, group=world, dim=1, sizes=split_sizes(18, world_size))
added = wire.all_reduce(by_rows, group=world)
torch.allclose(joined, x @ weight.T), torch.allclose(added, x @ weight.T)

# %%
draw.two_splits(5, 12, 18, len(ranks))

# %% [markdown]
# A number of $y$ is made of one column of $W^\top$ and all of a row of $x$. With whole columns a rank finishes some numbers and knows
# nothing of the others, which are *joined*. A row of $W^\top$ meets one number of each token, so with some of the rows a rank has some of
# the terms of every sum, and the ranks' results are *added*. Then it needs only its part of $x$, too.
#
# $$xW^\top = \big(xW_0^\top,\ \dots,\ xW_{p-1}^\top\big) \qquad\qquad xW^\top = \sum_r x_r W_r^\top$$

# %% tags=["check"]
# %%px
assert torch.allclose(joined, x @ weight.T) and torch.allclose(added, x @ weight.T)
assert not torch.allclose(by_rows, x @ weight.T)

# %% [markdown]
# Columns need nothing from anyone: each rank has its part of $y$, and will have that part of $dy$.
#
# **Each rank now runs backward through its own columns. Which of $y$, $dx$ and $dW$ are those of one device?**

# %%
my_second_guess = ...

# %% [markdown]
# `expected` is this rank's part of what one device computes; for $x$, which all ranks hold, that is all of it.

# %%
# %%px
def with_gradients(product, x, weight, dy):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = product(x, weight)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy)


def is_same(got, expected):
    return [bool((a - b).abs().max() < 1e-12 * b.abs().max()) for a, b in zip(got, expected)]


y, dx, dweight = with_gradients(F.linear, x, weight, dy)
expected = piece(y, 1), dx, piece(dweight, 0)
alone = with_gradients(F.linear, x, piece(weight, 0), piece(dy, 1))
is_same(alone, expected)

# %% [markdown]
# $y$ and $dW$ are right, and $dx$ is short. On one device there is one $x$, and all of $y$ hangs on it. Here there are $p$ copies of it, each rank
# differentiates by its own, and sees only what its columns make of it. To change $x$ is to change all the copies at once, so its
# gradient is the sum of theirs: what was copied forward is added up backward.
#
# $$x_r = x \ \text{ for all } r \quad\Rightarrow\quad dx = \sum_r dx_r, \qquad dx_r = dy_r\,W_r$$
#
# Rows are the reverse. There forward adds, $y = \sum_r y_r$, and a change of one $y_r$ changes $y$ by as much. So the gradient is copied: $dy_r = dy$ for all $r$,
# and all ranks have $dy$ already. The two are called $f$ and $g$ in the paper that built a language model on them (arXiv:1909.08053); in
# the package they are `copy_sum` and `sum_copy`, and each is the other's backward.

# %%
from tpcourse.conjugates import CopySum, SumCopy

show_source(CopySum)

# %%
show_source(SumCopy)

# %% [markdown]
# With them both cuts are right, forward and backward:

# %%
# %%px
from tpcourse.conjugates import copy_sum, sum_copy


def columns(x, weight):
    return F.linear(copy_sum(x, group=world), weight)


def rows(x, weight):
    return sum_copy(F.linear(x, weight), group=world)


found = with_gradients(columns, x, piece(weight, 0), piece(dy, 1))
found_rows = with_gradients(rows, piece(x, 1), piece(weight, 1), dy)
is_same(found, expected), is_same(found_rows, (y, piece(dx, 1), piece(dweight, 1)))

# %% [markdown]
# And the short $dx$ of above, added up over the ranks, is the right one:

# %% tags=["check"]
# %%px
assert is_same(alone, expected) == [True, False, True]
assert torch.allclose(wire.all_reduce(alone[1], group=world), dx)
assert all(is_same(found, expected)) and all(is_same(found_rows, (y, piece(dx, 1), piece(dweight, 1))))

# %% [markdown]
# ## 2. An MLP
# Its first weight, *up*, goes from D to F, then comes a GELU, then *down* goes back. Here *up* is cut by columns and *down* by rows. People say: "column
# parallel needs an all-gather after it, and row parallel an all-reduce", and "column's backward all-reduces the weight gradients".
#
# **How many collectives does this MLP need, forward and backward together? Of which shapes?**

# %%
my_guess = ...

# %% [markdown]
# `column_linear` and `row_linear` are the two products of section 1, with $f$ in the first and $g$ in the second.

# %%
# %%px
from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, gather_columns, row_linear

torch.manual_seed(1)
shapes = (2, 6, 12), (48, 12), (12, 48), (12,)                          # x [B, T, D], up, down, bias
x, up, down, bias = (torch.randn(*shape, dtype=torch.float64).to(device).requires_grad_() for shape in shapes)
up_r, down_r = (w.detach().clone().requires_grad_() for w in (piece(up, 0), piece(down, 1)))

with ledger() as log:
    hidden = F.gelu(column_linear(x, up_r, tp=world))                   # [B, T, F/p]
    y = row_linear(hidden, down_r, tp=world)                            # [B, T, D]
    found = torch.autograd.grad(y.square().sum(), (x, up_r, down_r))
[(event.op, event.shape) for event in log.events]

# %% [markdown]
# Two, one each way, and both of the shape of $x$. Up by columns leaves each rank with finished hidden numbers. GELU takes each
# number alone, so it does not care who has the others. And some of the numbers of each token, with the rows that belong to them, is
# exactly what a product cut by rows wants. Nothing stands between. The other order would not do: after rows a rank holds parts
# of sums, and $\mathrm{gelu}(a + b) \neq \mathrm{gelu}(a) + \mathrm{gelu}(b)$.
#
# $$\text{numbers that a rank sends, each way:}\quad \frac{2(p-1)}{p}\,BTD$$
#
# The hidden width F is not in it. Now the first claim: here the columns are gathered after the first product, and cut again for the second:

# %%
# %%px
from tpcourse.conjugates import split_gather

with ledger() as gathered_log:
    whole_hidden = gather_columns(column_linear(x, up_r, tp=world), tp=world)           # [B, T, F]
    hidden = F.gelu(split_gather(whole_hidden, group=world, dim=-1))
    gathered = torch.autograd.grad(row_linear(hidden, down_r, tp=world).square().sum(), (x, up_r, down_r))
is_same(gathered, found), [event.op for event in gathered_log.events]

# %% [markdown]
# **Verdict.** The same values, for two all-gathers more, of F numbers a token. "Column parallel needs an all-gather" holds only at the end
# of a model, where somebody wants the whole output. "Row parallel an all-reduce" is right.
#
# The second claim: of the two calls above, the second is backward's. Are the weight gradients right without one of their own?

# %%
# %%px
whole_y = F.linear(F.gelu(F.linear(x, up)), down)
dx, dup, ddown = torch.autograd.grad(whole_y.square().sum(), (x, up, down))
calls = [event.shape == x.shape for event in log.events]
is_same(found, (dx, piece(dup, 0), piece(ddown, 1))), calls

# %% [markdown]
# **Verdict.** They are. Column's backward adds up $dx$, the input's gradient. The gradient of a weight that one rank has is complete on that
# rank. (It is *data* parallelism that averages weight gradients: there all ranks hold the same weight.)
#
# The sum need not stop the rank. It starts when $dx$ is there, and $dW$, which does not wait for it, is computed while it travels:

# %%
from tpcourse.linear.column import Column

show_source(Column)

# %% [markdown]
# The check looks at values, shapes and the number of calls.

# %% tags=["check"]
# %%px
assert all(is_same(found, (dx, piece(dup, 0), piece(ddown, 1)))) and all(is_same(gathered, found))
assert [(e.op, e.shape) for e in log.events] == [("all_reduce", x.shape)] * 2 and log.events[1].is_async
assert gathered_log.count("all_reduce") == gathered_log.count("all_gather") == 2

# %% [markdown]
# ## 3. Where does the bias go?
# **The second product of the MLP is split by rows, so each rank holds only part of the sum. The bias is whole on every rank. Does it matter
# whether a rank adds it before or after the all-reduce?**
#
# A bias of ones, an input of zeros: every output should be exactly 1. If each rank adds the bias first, what comes out?

# %%
my_guess = ...

# %% [markdown]
# `partial` is what this rank's rows contribute.

# %%
# %%px
ones = torch.ones(3, device=device)
partial = torch.zeros(3, device=device)                                 # [D]
came_out = wire.all_reduce(partial + ones, group=world)
came_out == 1, came_out == world_size

# %% [markdown]
# The all-reduce cannot know that the ones are the same one. It adds what it is given, and it is given the bias once per rank: the
# output is $p$ instead of 1, an error of $(p-1)\,b$. A model with zero biases, which is how most tests are written, hides this
# completely. Two published training codes carried this bug.
#
# Dividing the bias by $p$ first repairs the output. Does it repair all? Here are both repairs and the mistake, in the whole MLP, and
# beside them the one of section 1, a column product that does not sum $dx$:

# %%
# %%px
def mlp(first, second):
    x_, up_, down_, bias_ = tensors = [t.detach().clone().requires_grad_() for t in (x, up_r, down_r, bias)]
    y = second(F.gelu(first(x_, up_)), down_, bias_)
    return y.detach(), *torch.autograd.grad(y.square().sum(), tensors)


whole_y = F.linear(F.gelu(F.linear(x, up)), down, bias)
dx, dup, ddown, dbias = torch.autograd.grad(whole_y.square().sum(), (x, up, down, bias))
expected = whole_y.detach(), dx, piece(dup, 0), piece(ddown, 1), dbias
after = mlp(columns, lambda h, w, b: rows(h, w) + b)
before = mlp(columns, lambda h, w, b: sum_copy(F.linear(h, w) + b, group=world))
share = mlp(columns, lambda h, w, b: sum_copy(F.linear(h, w) + b / world_size, group=world))
no_sum = mlp(F.linear, lambda h, w, b: rows(h, w) + b)

# %% [markdown]
# Each line is one version, each cell the largest relative error of one tensor on rank 0:

# %%
# %%px
def errors(found):
    pairs = zip(("y", "dx", "dup", "ddown", "dbias"), found, expected)
    return {name: ((a - b).abs().max() / b.abs().max()).item() for name, a, b in pairs}


versions = {"bias after the sum": after, "bias before the sum": before, "bias / p before": share, "no sum of dx": no_sum}
table = [(name, errors(found)) for name, found in versions.items()]

# %%
draw.error_table(dict(ranks["table"][0]))

# %% [markdown]
# White is rounding, black is wrong. With $b/p$ the output is right, and each rank's bias receives $1/p$ of the gradient that it should. So
# the bias belongs after the sum, where it is added once:
#
# $$y = \Big(\sum_{r} x_r W_r^\top\Big) + b$$
#
# Look down the first column: outputs alone catch one of the three mistakes. `row_linear` adds the bias where it belongs.

# %%
from tpcourse.linear.row import Row

show_source(Row)

# %% [markdown]
# So a check must compare the gradients too, with a bias that is not zero. `check.same` does, for groups of several sizes and in float64.

# %% tags=["check"]
from torch.nn import functional as F

from tpcourse.linear import row_linear

make = {"x": check.split(5, 10, dim=1), "weight": check.split(6, 10, dim=1), "bias": check.whole(6)}
names = ["y", "dx", "dweight", "dbias"]
check.same(ranks, row_linear, F.linear, names, make=make, result=check.whole(), calls={"all_reduce": 1})

# %% [markdown]
# And the table holds exactly these faults:

# %% tags=["check"]
table = dict(ranks["table"][0])
wrong = {name: [tensor for tensor, error in errors.items() if error > 1e-9] for name, errors in table.items()}
assert wrong["bias after the sum"] == [] and wrong["bias / p before"] == ["dbias"]
assert wrong["bias before the sum"][0] == "y" and wrong["no sum of dx"] == ["dx"]

# %% [markdown]
# ## 4. Attention
# Heads do not know of each other. So queries, keys and values are products by columns, whole heads at a time; each rank attends with its
# own heads; and the product that mixes them is by rows. One all-reduce each way, as for the MLP.
#
# With *grouped queries* several query heads read one K/V head. If there are fewer of those than ranks, several ranks hold the same one:

# %%
draw.head_cells(24, (24, len(ranks), 1), len(ranks))

# %% [markdown]
# A K/V head in several colours is whole on each of these ranks.
#
# **24 query heads and one K/V head, so every rank has a copy of its weights. After backward, is each rank's gradient of that copy the one-device
# gradient, too large, or too small?**

# %%
my_guess = ...

# %% [markdown]
# `qkv_linear` makes all three in one product: the rows of its weight are this rank's queries', then K's and V's. Heads are 2 wide.

# %%
# %%px
from tpcourse.linear import Heads, qkv_linear, sum_shared_heads


def attention(x, qkv, out, tp):
    made = qkv_linear(x, qkv, None, tp=tp, heads=Heads(24, 1, tp), head_width=2)
    q, k, v = (part.transpose(1, 2) for part in made)                   # [B, H/p, T, K], [B, 1, T, K] twice
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return row_linear(mixed.transpose(1, 2).flatten(2), out, tp=tp)     # [B, T, D]


qkv, out = (torch.randn(*s, dtype=torch.float64).to(device).requires_grad_() for s in ((48 + 2 + 2, 12), (12, 48)))
qkv_r, out_r = torch.cat([piece(qkv[:48], 0), qkv[48:]]).detach().requires_grad_(), piece(out, 1)
(whole,) = torch.autograd.grad(attention(x, qkv, out, None).square().sum(), qkv)
with ledger() as log:
    (mine,) = torch.autograd.grad(attention(x, qkv_r, out_r, world).square().sum(), qkv_r)
log.num_calls, is_same((mine[:-4], mine[-4:]), (piece(whole[:48], 0), whole[48:]))

# %% [markdown]
# Queries right, K and V not: each rank's copy hears of its own query heads only. It is $f$ once more, with a weight in the place of $x$: what lies on
# several ranks, with different work behind it on each, has a gradient that is the sum of theirs.
#
# $$dW_K = \sum_r dW_K^{(r)}$$
#
# A weight's gradient is not needed before the optimizer steps. So nothing is sent inside the layer; once, after the last backward, one call
# serves the shared heads of all layers.

# %%
# %%px
with ledger() as once:
    sum_shared_heads([mine], tp=world, heads=Heads(24, 1, world), head_width=2)
once.num_calls, is_same((mine,), (torch.cat([piece(whole[:48], 0), whole[48:]]),))

# %% [markdown]
# So does everything that is whole on all ranks owe a sum? Ask what comes behind it:
#
# | on every rank | the work behind it | a rank's gradient |
# |---|---|---|
# | $x$ before columns | other columns on each rank | a part; summed in backward |
# | a shared K/V head | other queries on each rank | a part; summed once a step |
# | scale of a norm, bias of rows | the same on each rank | complete, and equal on all |
#
# To sum the last kind as well would make it $p$ times too large. (Lesson 06 changes what stands in that line.)

# %% tags=["check"]
# %%px
assert log.num_calls == 2 and once.num_calls == 1 and Heads(24, 1, world).copies == world_size
assert all(is_same((mine[:-4], mine[-4:]), (piece(whole[:48], 0), whole[48:])))

# %% [markdown]
# ## 5. A vocabulary in pieces
# The head of a language model is one more product by columns: each rank has the logits of some words, [N, V/p] for N tokens. The loss
# wants a softmax over all V.
#
# **How many numbers must travel for each token, for a vocabulary of 256? And of 50,257?**

# %%
my_guess = ...

# %% [markdown]
# Once with the logits gathered, once with `vocab_cross_entropy`:

# %%
# %%px
from tpcourse.vocab import vocab_cross_entropy


def losses_and_logs(V, N=16):
    torch.manual_seed(V)
    logits, targets = torch.randn(N, V).to(device), torch.randint(V, (N,)).to(device)
    with ledger() as gathering:
        whole = wire.all_gather(piece(logits, 1), group=world, dim=1, sizes=split_sizes(V, world_size))
    with ledger() as log:
        loss = vocab_cross_entropy(piece(logits, 1), targets, tp=world, V=V)
    return torch.allclose(loss, F.cross_entropy(whole, targets)), gathering, log


by_vocabulary = {V: losses_and_logs(V) for V in (256, 4096, 50257)}
sent = {"logits gathered": {V: gathering.bytes_sent for V, (_, gathering, _) in by_vocabulary.items()}}
sent["vocab_cross_entropy"] = {V: log.bytes_sent for V, (_, _, log) in by_vocabulary.items()}
{V: (same, sum(event.numel for event in log.events) / 16) for V, (same, _, log) in by_vocabulary.items()}

# %%
draw.traffic_curve(ranks["sent"][0], "V, for 16 tokens")

# %% [markdown]
# Three, whatever V is. For one token with the logits $z$ and the target $t$,
#
# $$\ell = \log \sum_v e^{z_v - m} - (z_t - m) = \log \sum_r \Big(\sum_{v \text{ on } r} e^{z_v - m}\Big) - (z_t - m)$$
#
# for any $m$. Each rank adds up its own exponentials, and a sum over ranks does the rest. The logit of the target is on one rank; the others
# give 0, so it travels in the same sum. The third number is $m$, the largest logit, which keeps $e^z$ from overflowing. Backward wants
# $\mathrm{softmax}_v - [v = t]$ for each word, of which everything is here already: nothing is sent.

# %%
from tpcourse.vocab import TokenLosses

show_source(TokenLosses.forward)

# %% [markdown]
# The other end is the embedding: row $t$ of a [V, D] matrix, cut by the same words. A rank that does not have the word gives zeros, and a sum finds
# the row. Its bytes do not know V either:

# %%
# %%px
from tpcourse.vocab import vocab_embedding

words, tokens = torch.randn(50257, 12).to(device), torch.randint(50257, (2, 6)).to(device)
with ledger() as log:
    rows_found = vocab_embedding(tokens, piece(words, 0), tp=world, V=50257)            # [B, T, D]
torch.equal(rows_found, words[tokens]), [(event.op, event.shape) for event in log.events]

# %% [markdown]
# Head and embedding want the same rows, so a model that ties the two keeps one piece for both.

# %% tags=["check"]
# %%px
from tpcourse import memory

logits = piece(torch.randn(16, 4096), 1).contiguous().to(device).requires_grad_()
kept = memory.saved(vocab_cross_entropy, logits, torch.zeros(16).long().to(device), tp=world, V=4096)
assert all(same and sum(e.numel for e in log.events) == 3 * 16 for same, _, log in by_vocabulary.values())
assert logits.nbytes <= kept.bytes < 1.1 * logits.nbytes and torch.equal(rows_found, words[tokens])

# %% [markdown]
# ## 6. A GPT as a table
# `tpcourse.block.GPT` is written once, for one device or many. What makes it parallel is a table: the name of a weight, and how it lies on
# the ranks.

# %%
# %%px
from tpcourse import block

config = block.GPTConfig(V=256, T=32, D=48, H=24, kv_heads=1, L=2)
alone = block.GPT(config, dtype=torch.float64, device=device)
model = block.GPT(config, tp=world, dtype=torch.float64, device=device)
shards = list(model.shards.items())
dict(block.LAYOUTS)

# %%
draw.weight_pieces([dict(of_rank) for of_rank in ranks["shards"]])

# %% [markdown]
# Each bar is a weight of this GPT, cut as sections 2 to 5 cut it. *Column pairs* are two products by columns in one, as the gated MLP has them.
#
# **A new model is random numbers. Each rank fills its own pieces. How does it come by the numbers that one device would have drawn there, for any
# number of ranks?**

# %%
my_guess = ...

# %% [markdown]
# `to_one_device` puts the pieces of all ranks together.

# %%
# %%px
together = block.to_one_device(model)
all(torch.equal(together[name], weight.cpu()) for name, weight in alone.named_parameters())

# %% [markdown]
# Equal to the bit. What a weight starts with follows from the seed, its name and its *whole* shape, and from nothing else. A rank draws
# the whole matrix on the CPU, one weight at a time, and keeps its piece. (Two shorter ways go wrong without an error. If all ranks draw
# only their pieces, from one seed, all hold the same rows. With a seed for each rank, each number of ranks starts a different model.)

# %%
from tpcourse.block import initial

show_source(initial)

# %% [markdown]
# Now a step. Gradients are clipped by the norm of all of them together.
#
# **A rank could take the norm of the gradients that it holds. Or the ranks could add up the squares of all that they hold. Which of the two is the
# one-device norm?**

# %%
my_second_guess = ...

# %% [markdown]
# The text is Python's standard library again, one token for each byte.

# %%
# %%px
from torch.nn.utils import get_total_norm

from tpcourse.train import batch, source_tokens

text = source_tokens(300_000).to(device)
tokens, targets = batch(text, 4, 32, step=0)                            # [B, T], the same on all ranks
for gpt in (alone, model):
    gpt.loss(tokens, targets).backward()
    block.finish_gradients(gpt)                                         # shared K/V heads

one_device = get_total_norm([weight.grad for weight in alone.parameters()])
own = get_total_norm([weight.grad for weight in model.parameters()])
all_squares = wire.all_reduce(own.square(), group=world).sqrt()
right = block.gradient_norm(model)
bool(own < one_device), bool(all_squares > one_device), torch.allclose(right, one_device, rtol=1e-12)

# %% [markdown]
# Neither. A rank's own norm is too small, and differs from rank to rank. So each would clip by a factor of its own, and a weight that is whole on
# all ranks would take a different step on each: from then on the ranks train different models. The sum of all squares is the same everywhere, but it counts
# whole weights $p$ times, and clips too hard. Every element of the one-device gradient counts once:
#
# $$\|g\|^2 = \sum_r \|g_r^{\text{split}}\|^2 + \|g^{\text{whole}}\|^2$$
#
# One number travels. The table says which pieces a rank is the first to hold.

# %%
from tpcourse.block import gradient_norm

show_source(gradient_norm)

# %% [markdown]
# Random numbers come back in training, as dropout. Between the products all ranks hold the same activations; inside attention each has its own
# heads.
#
# **Where must the ranks drop the same places, and where must they not?**

# %%
my_third_guess = ...

# %% [markdown]
# Two masks of ones and zeros, added up over the ranks:

# %%
# %%px
from tpcourse import sequence

seeds = sequence.Seeds(0, tp=world)


def kept_on(generator):
    mask = sequence.dropout(torch.ones(64), 0.5, generator) > 0
    return wire.all_reduce(mask.to(device).long(), group=world)


shared, own_mask = kept_on(seeds.shared("after attention", step=1)), kept_on(seeds.own("scores", step=1))
all(shared % world_size == 0), all(own_mask % world_size == 0)

# %% [markdown]
# The first keeps a place on all ranks or on none: it is for what is replicated. With a mask of its own on each rank, $x$ would differ
# from rank to rank, and nothing would complain. The second is for what is split: with one mask for all, the first head of every
# rank would drop the same places. Both follow from seed, name and step, the second from the rank too, so a forward that is computed again drops
# the same places.

# %% tags=["check"]
# %%px
assert own < one_device < all_squares and torch.allclose(right, one_device, rtol=1e-12)
assert wire.all_reduce(own, group=world, op="max") > wire.all_reduce(own, group=world, op="min")
assert all(shared % world_size == 0) and not all(own_mask % world_size == 0)

# %% [markdown]
# Everything is in place: twenty steps of Adam on real text, clipped, on one device and on all ranks.
#
# **In float64, how far apart are the two at the end?**

# %%
my_fourth_guess = ...

# %% [markdown]
# `Trainer` draws the batches, finishes the gradients, clips and steps; `tp=None` is one device, which every rank plays for itself.

# %%
# %%px
from tpcourse.train import Trainer


def trained(tp):
    gpt = block.GPT(config, tp=tp, dtype=torch.float64, device=device)
    optimizer = torch.optim.Adam(gpt.parameters(), lr=3e-3)
    trainer = Trainer(gpt, optimizer, text, num_sequences=4, length=32, tp=tp, max_norm=0.5)
    return trainer.advance(20), block.to_one_device(gpt)


(one_losses, one_weights), (losses, weights) = trained(None), trained(world)
apart = max((weights[name] - one_weights[name]).abs().max().item() for name in weights)
apart < 1e-10, max(abs(a - b) for a, b in zip(losses, one_losses)) < 1e-10

# %%
draw.loss_curve({"all ranks": ranks["losses"][0]}, one_device=ranks["one_losses"][0], V=256)

# %% [markdown]
# Rounding apart, they are one model. Every sum of this lesson had a part in that.
#
# PyTorch can split a model as well. `parallelize_module` takes the MLP as it is on one device, and a plan:

# %%
# %%px
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

net = torch.nn.Sequential(torch.nn.Linear(12, 48, bias=False), torch.nn.GELU(), torch.nn.Linear(48, 12)).double()
for weight, value in zip(net.parameters(), (up, down, bias)):
    weight.data.copy_(value)
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
theirs = parallelize_module(net.to(device), DeviceMesh.from_group(world, device.type), plan)

with ledger() as log:
    y = theirs(x)
    grads = torch.autograd.grad(y.square().sum(), (x, *theirs.parameters()))
found = [t.to_local() if hasattr(t, "to_local") else t for t in (y.detach(), *grads)]
is_same(found, expected), [(event.op, event.shape) for event in log.events]

# %% [markdown]
# The same values and the same two calls. Its weights are `DTensor`s, which know how they lie on the ranks, and choose the collectives themselves.

# %% tags=["check"]
# %%px
assert apart < 1e-10 and losses[-1] < losses[0] - 1
assert all(is_same(found, expected)) and [(e.op, e.shape) for e in log.events] == [("all_reduce", x.shape)] * 2

# %% [markdown]
# ## 7. What people say
# "TP 2 should halve the memory. Mine fell by 40 %, because communication was not overlapped." "With 12 layers, h 512 and F 2048 it took 55 % of the
# memory and was 1.34 times as fast, 1.72 times with TP 4, with the same loss." "From TP 4 on, gather and scatter are faster than all-reduce."
#
# **Two ranks share a model. Which parts of a step's memory become half, and which do not?**

# %%
my_guess = ...

# %% [markdown]
# A real step on the first two ranks, in mixed precision as in lesson 03, and on one device. Activations are what `memory.saved` counts for the
# whole forward, loss included.

# %%
# %%px
from tpcourse.adam import MixedAdam

classic = {"norm": "layer", "mlp": "gelu", "bias": True, "rotary": False, "attention": "unfused", "dropout": 0.1}
middle = block.GPTConfig(V=256, T=64, D=192, H=24, L=2, **classic)
tokens, targets = batch(text, 2, 64, step=0)
pair = dist.new_group([0, 1])


def weigh(tp):
    gpt = block.GPT(middle, tp=tp, dtype=torch.bfloat16, device=device)
    adam, kept = MixedAdam(gpt.parameters()), memory.saved(gpt.loss, tokens, targets)
    gpt.loss(tokens, targets).backward()
    adam.step()
    return {kind: n for kind, n in memory.held(gpt, adam).items() if kind != "other"} | {"activation": kept.bytes}


held = (weigh(None), weigh(pair)) if rank < 2 else None

# %%
draw.memory_shares(*ranks["held"][0], ("one device", "each of 2 ranks"))

# %% [markdown]
# **Verdict.** States are cut with the weights, to a hair above 0.50: the embedding of places, norms and biases of rows are whole. Activations are not.
# What is D wide is on both ranks: inputs of norms and products, residuals, masks of dropout. Of the published 34 of lesson 03, 10 stay; in
# its letters, with $t$ for our $p$:
#
# $$sbh\Big(10 + \frac{24}{t} + 5\,\frac{as}{ht}\Big)$$
#
# So the total lies between a half and two thirds: "fell by 40 %" and "took 55 %" are both ordinary. And overlap has no part in it: when
# a message travels does not change what is kept.

# %% tags=["check"]
from tpcourse import memory

sizes, (one_device, of_two) = {"batch": 2, "tokens": 64, "width": 192, "heads": 24}, ranks["held"][0]
share = memory.activation_bytes(**sizes, tp=2) / memory.activation_bytes(**sizes)
states = [kind for kind in one_device if kind != "activation"]
assert all(0.5 < of_two[kind] / one_device[kind] < 0.52 for kind in states)
assert abs(of_two["activation"] / one_device["activation"] - share) < 0.02 and 0.5 < share < 0.67
assert 0.5 < sum(of_two.values()) / sum(one_device.values()) < 0.6

# %% [markdown]
# The loss is settled: in section 6 it was that of one device. Time is left.
#
# **Does an MLP get faster when several ranks share it? At which widths?**

# %%
my_second_guess = ...

# %% [markdown]
# Forward and backward of an MLP, at two widths that suit a CPU. The kernels are those of section 2, and torch's of section 6. With *tokens split* each all-reduce
# is a reduce-scatter and an all-gather; that is lesson 06.

# %%
from tpcourse.cli.bench.calls import here

found = ranks.run(here, "tensor_times", "mlp", 3)[0]
times = {"this machine": {"p": len(ranks), "mlp": found}}

# %% [markdown]
# Below it the recorded run on GPUs, with the model of 12 layers. The grey bar ends at $1/p$, where communication costs nothing.

# %% tags=["nbval-ignore-output"]
draw.split_times(times | draw.recorded("tensor"))

# %% [markdown]
# That model in numbers: a step, the allocator's peak on a rank, the last loss.

# %% tags=["nbval-ignore-output"]
for machine, figures in draw.recorded("tensor").items():
    print(machine)
    for name, mode in figures["model"]["modes"].items():
        print(f"{name:17} {mode['ms']:6.1f} ms {mode['peak_bytes'] / 1e9:5.2f} GB   loss {mode['losses'][-1]:.3f}")

# %% [markdown]
# And on more than two? Recorded on four GPUs, in groups of two and of four: forward and backward of that model, and of two layers with h 8192.

# %% tags=["nbval-ignore-output"]
lines, machine = draw.recorded_scale("model")
lines = {name: line for name, line in lines.items() if name.endswith(": TP")}
draw.by_ranks(lines, machine, ylabel="time / one device", ideal=lambda p: 1 / p)

# %% [markdown]
# A product takes $2NDF/p$ operations, and its all-reduce sends $2(p-1)/p \cdot ND$ numbers. In the ratio of the two, N and D cancel:
#
# $$\frac{\text{communication}}{\text{product}} \propto \frac{p - 1}{F}$$
#
# So it is the hidden width that decides. And each call has a cost of its own (lesson 02), which a narrow layer never earns back. On a CPU the
# ranks want the same cores, so look there at how the widths differ, and for speed at GPUs.
#
# **Verdict.** The same loss, but for the rounding of bfloat16: yes. The memory is 65 % here, not 55: no scores are kept, so more of what a rank keeps
# is $D$ wide. "1.34 and 1.72 times as fast" says something about a machine, where h 512 was wide enough. On fast GPUs a step of the narrow model
# takes 2.28 times as long on two as on one; its forward and backward alone, on the machine with four, 1.85 times on two and 1.92 on four. The wide
# one takes 0.58 and 0.36 of one device's time.

# %% tags=["check"]
for figures in draw.recorded("tensor").values():
    ratios = [row["ms"]["ours"] / row["ms"]["one device"] for row in figures["mlp"]]
    assert figures["p"] != 2 or (ratios[0] < 0.6 and ratios[-1] > 1)

# %% [markdown]
# The third claim is about the two ways to add up, and their bytes can be counted on any machine:

# %%
# %%px
def block_log(tokens_split):
    gpt = block.GPT(config, tp=world, sequence_parallel=tokens_split, device=device)
    x = torch.randn(2, 24 // world_size if tokens_split else 24, 48, device=device, requires_grad=True)
    with ledger() as log:
        gpt.blocks[0](x, gpt.new_pass(24)).sum().backward()
    return log


reduced, paired = block_log(False), block_log(True)
counts = [{event.op: log.count(event.op) for event in log.events} for log in (reduced, paired)]
counts, reduced.bytes_sent == paired.bytes_sent

# %% [markdown]
# **Verdict.** Four all-reduces or eight calls, and the same bytes to the last one. An all-reduce *is* a reduce-scatter and an all-gather (lesson 01), so
# the pair cannot gain by sending less, at any number of ranks. It can lose by having twice the calls, and most where messages are small: in the
# picture of widths, empty marks against filled ones. Lesson 06 measures it on four GPUs; what it gains lies between its two halves.

# %% tags=["check"]
# %%px
assert counts == [{"all_reduce": 4}, {"all_gather": 4, "reduce_scatter": 4}]
assert reduced.bytes_sent == paired.bytes_sent

# %% [markdown]
# ## Train it
# A GPT of one layer, in float32, on all ranks. Before it has learned anything its loss is close to that of a guess among 256 bytes, $\ln 256$.

# %%
# %%px
from tpcourse.train import sample, warmup_cosine

small = block.GPTConfig(V=256, T=64, D=96, H=24, L=1)
gpt = block.GPT(small, tp=world, device=device)
optimizer = torch.optim.AdamW(gpt.parameters(), lr=0.01)
schedule = warmup_cosine(optimizer, warmup=20, total=200)
trainer = Trainer(gpt, optimizer, text, num_sequences=8, length=64, tp=world, schedule=schedule)

# %% [markdown]
# You may interrupt the next cell, and run it again: it goes on where it was.

# %%
from tpcourse import train

losses = train.run(ranks, "trainer", steps=200)

# %% tags=["nbval-ignore-output"]
draw.loss_curve(losses, V=256)

# %% [markdown]
# And what does it write? Each byte is drawn from the softmax of the logits divided by a temperature: below 1, likely bytes get likelier. To draw,
# add noise from one shared seed (Gumbel's) to each of them and take the largest. A rank knows the logits of its own bytes only, so for each byte
# the ranks compare their best, and all write the same text.

# %% tags=["nbval-ignore-output"]
# %%px
print(sample(gpt, "def ", 120, temperature=0.7, tp=world))

# %% [markdown]
# It has learned something, if not Python:

# %% tags=["check"]
assert len(losses) == 200 and losses[0] > 5 and sum(losses[-20:]) / 20 < 3

# %% [markdown]
# ## You saw
# You saw that a product can be cut by columns or by rows; that what is copied forward is summed backward, be it an input or a K/V head; an MLP
# and attention that send one tensor like $x$ each way, and a loss that sends three numbers a token; and a GPT that twenty steps cannot tell
# from one device. In the exercises (`exercises/05_columns_and_rows.ipynb`) you write the cuts, and find a bias that is added too often.
#
# **One case that fails.** A rank has a $p$-th of the weights. Of the activations, too?

# %%
# %%px
def kept_by_a_block(tp):
    gpt = block.GPT(middle, tp=tp, dtype=torch.bfloat16, device=device)
    x = torch.randn(2, 64, 192, dtype=torch.bfloat16, device=device, requires_grad=True)
    return memory.saved(gpt.blocks[0], x, gpt.new_pass(64)).bytes


whole_bytes, rank_bytes = kept_by_a_block(None), kept_by_a_block(world)

# %% [markdown]
# If all of them were split, each rank would keep its $p$-th part, give or take a per cent:

# %% tags=["raises-exception"]
kept, whole = ranks["rank_bytes"][0], ranks["whole_bytes"][0]
assert kept < 1.01 * whole / len(ranks), "norms, dropouts and residuals are whole on every rank"

# %% [markdown]
# All ranks compute the same norms, dropouts and residuals on the same tokens, and each keeps all of it. But those work on each token alone. Lesson 06 gives
# each rank its own tokens between the products, and sends no byte more.
