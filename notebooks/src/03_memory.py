# %% [markdown]
# # 03 Memory
# **After this you can say which bytes a training step holds, count them on your own ranks, and tell before you rent a
# machine whether a model will fit.** About 50 minutes; uses lesson 00.
#
# "10 B parameters need 120 GB." "No, 16 bytes a parameter." "Tensor parallelism on two GPUs should halve it, and it fell
# by 40 %." All three come from people who measured something. Here you count each byte once, and find out what they counted.

# %%
from tpcourse import draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. What a parameter costs
# **A model in bfloat16 has 2 bytes a parameter. How many bytes a parameter does a rank hold after a step of Adam,
# activations not counted?**

# %%
my_guess = ...

# %% [markdown]
# In mixed precision it is PyTorch's own Adam that steps, on a copy of the model in float32. This code will run:

# %%
from tpcourse.adam import MixedAdam

show_source(MixedAdam.step)

# %% [markdown]
# `memory.held` adds up *storages*, the pieces of memory behind the tensors, each of them once.

# %%
# %%px
from torch import nn

from tpcourse import memory
from tpcourse.adam import MixedAdam

model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(device, torch.bfloat16)
adam = MixedAdam(model.parameters())
data = torch.randn(8, 128, device=device, dtype=torch.bfloat16)
model(data).square().mean().backward()
adam.step()
num_parameters = sum(p.numel() for p in model.parameters())
held = memory.held(model, adam)
held

# %% [markdown]
# Each rank trains a copy of its own, so each holds the same. The dashed bar is the formula:

# %%
from tpcourse import memory

states = memory.model_state_bytes(ranks["num_parameters"][0])
draw.memory_bars(ranks["held"], states)

# %% [markdown]
# Sixteen, eight times the model: 2 for the parameter, 2 for its gradient, 4 for the *master copy* in float32, and 4 for each of
# Adam's two moments, the running means of the gradient and of its square. (`other` is a step count of 4 bytes for each tensor.)
#
# $$\underbrace{2}_{\text{parameter}} + \underbrace{2}_{\text{gradient}} + \underbrace{4}_{\text{master}} +
# \underbrace{4+4}_{\text{moments}} = 16 \text{ bytes}$$
#
# Adam in plain float32 comes to sixteen as well, 4 + 4 + 8. Mixed precision buys time, and half of the activations. Of the
# model states it saves nothing.

# %% tags=["check"]
count = ranks["num_parameters"][0]
assert {kind: size for kind, size in ranks["held"][0].items() if kind != "other"} == states
assert sum(states.values()) == (4 + 4 + 8) * count

# %% [markdown]
# ## 2. Twelve or sixteen?
# Others say twelve. They keep no master copy: in each step it is made anew from the model, and then dropped.
#
# **A weight of 1 gets a hundred steps of 0.0001, all in one direction. How far has it come, with a master copy and
# without one?**

# %%
my_guess = ...

# %% [markdown]
# With a constant gradient Adam steps by its learning rate.

# %%
# %%px
def hundred_steps(keep_master):
    weight = nn.Parameter(torch.ones(1000, device=device, dtype=torch.bfloat16))
    adam = MixedAdam([weight], keep_master=keep_master, lr=1e-4)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        adam.step()
    held = memory.held(nn.ParameterList([weight]), adam)
    per_parameter = (held.total - held["other"]) / 1000
    return per_parameter, round(1 - weight.float().mean().item(), 4)


with_master, without = hundred_steps(True), hundred_steps(False)
with_master, without

# %% [markdown]
# Sixteen bytes move it by about 0.01. Twelve do not move it at all, and no error says so. A bfloat16 has 8 significant bits: just below
# 1 its numbers lie 0.004 apart, so a step of 0.0001 is rounded away, and so are a hundred of them. The master copy is where
# small steps add up until the model can see them. (There are other cures: rounding at random, or a second bfloat16 for the rest.)
#
# Three claims, then:

# %%
for claim, billions, master in (("10 B, 120 GB", 10, False), ("10 B", 10, True), ("70 B, 1,120 GB", 70, True)):
    total = sum(memory.model_state_bytes(billions * 10**9, master=master).values())
    print(f"{claim:15} {'with' if master else 'without':8} master copy: {total / 1e9:5,.0f} GB")

# %% [markdown]
# **Verdict.** 120 GB is right for 10 B parameters without a master copy; with one it is 160. Sixteen bytes, and 1,120 GB for 70 B, are right
# with it. All of them stop before the first activation. And mind a second twelve: master copy and moments, the *optimizer's* share of the
# sixteen, which the ZeRO paper calls $K$.

# %% tags=["check"]
assert [bytes_held for bytes_held, _ in (ranks["with_master"][0], ranks["without"][0])] == [16, 12]
assert 0.008 < ranks["with_master"][0][1] < 0.0125 and ranks["without"][0][1] == 0
assert sum(memory.model_state_bytes(70 * 10**9).values()) == 1120 * 10**9

# %% [markdown]
# ## 3. What backward needs
# Backward through a product needs the product's inputs, so they are kept. The same holds for almost every operation.
#
# **A transformer layer of width 256 with 8 heads reads 2 sequences of 128 tokens. Which is larger, its weights or what it
# keeps for its backward?**

# %%
my_guess = ...

# %% [markdown]
# `memory.saved` calls the layer and notes each storage that autograd keeps, parameters left out.

# %%
# %%px
from tpcourse.layer import TransformerLayer

layer = TransformerLayer(width=256, heads=8).to(device, torch.bfloat16)
x = torch.randn(2, 128, 256, device=device, dtype=torch.bfloat16, requires_grad=True)    # [B, T, D]
kept = memory.saved(layer, x)
weights = memory.held(layer)["parameter"]
kept if rank == 0 else None

# %% [markdown]
# More than twice the weights, for 256 tokens. (`[256, 256]` is no weight but [B T, D], 2 x 128 tokens of width 256.) You can find each line in
# the layer:
#
# | part | keeps | bytes, in units of $BTD$ |
# |---|---|---|
# | two norms | their inputs | 4 |
# | attention | its input, q, k, v, the input of its last product, a mask | 2 + 6 + 2 + 1 |
# | its core | softmax, mask and result of dropout, each $[B, H, T, T]$ | $5\,HT/D$ |
# | MLP | inputs of its two products and of the GELU, a mask | 2 + 8 + 8 + 1 |
#
# An element has 2 bytes, a mask 1, and an addition keeps nothing. In the letters of the paper that counted it first
# (arXiv:2205.05198: $s = T$, $b = B$, $h = D$, $a = H$):
#
# $$\text{activations of a layer} = sbh\left(34 + 5\,\frac{as}{h}\right)$$
#
# The count is a little larger, for each norm keeps two numbers a token. Now more tokens:

# %%
# %%px
def units(tokens):
    x = torch.randn(2, tokens, 256, device=device, dtype=torch.bfloat16, requires_grad=True)
    said = memory.activation_bytes(2, tokens, 256, heads=8)
    return round(memory.saved(layer, x).bytes / x.numel(), 2), said / x.numel()


by_tokens = {tokens: units(tokens) for tokens in (64, 128, 256)}
by_tokens

# %% [markdown]
# Counted and computed, in units of $BTD$: what a token costs grows with the number of tokens, because every token keeps a
# score for every other one, three times over.

# %% tags=["check"]
for tokens, (counted, computed) in ranks["by_tokens"][0].items():
    assert computed == 34 + 5 * 8 * tokens / 256 and abs(counted / computed - 1) < 0.005
assert ranks["kept"][0].bytes > 2 * ranks["weights"][0]

# %% [markdown]
# ## 4. Compute it again
# What can be computed again need not be kept. *Selective* recompute drops the core of attention, everything of size
# $T \times T$, and computes it again when backward gets there. *Full* recompute keeps the layer's input alone.
#
# **Full recompute runs every forward twice. By how much do the operations of the whole step grow? And with selective
# recompute?**

# %%
my_guess = ...

# %% [markdown]
# PyTorch's flop counter counts the operations of all products, forward and backward.

# %%
# %%px
from torch.utils.flop_counter import FlopCounterMode

from tpcourse.layer import run_layer

kept_by, flops = {}, {}
for how in ("none", "selective", "full"):
    kept_by[how] = memory.saved(run_layer, layer, x, how).bytes
    with FlopCounterMode(display=False) as counter:
        run_layer(layer, x, how).sum().backward()
    flops[how] = counter.get_total_flops()
{how: (round(kept_by[how] / x.numel(), 2), round(flops[how] / flops["none"], 3)) for how in flops}

# %% [markdown]
# The first number is bytes in units of $BTD$, the second operations. Full recompute keeps 2 of 54 and costs a third: backward is
# twice a forward, so the step grows from three forwards to four. Selective recompute drops the 20 that grow with the tokens, for
# almost nothing: the two products of the core have no weights and are small.
#
# $$\frac{\text{core}}{\text{step}} = \frac{4bs^2h}{72bsh^2 + 12bs^2h} = \frac{s}{18h + 3s}$$
#
# That would be 2.6 % here. The counter says half of it: PyTorch stops recomputing as soon as the last tensor that backward asks for
# is there, and the result of the second product is not asked for.

# %% tags=["check"]
kept_by, flops, unit = ranks["kept_by"][0], ranks["flops"][0], 2 * 128 * 256
assert abs(kept_by["selective"] / (34 * unit) - 1) < 0.005 and kept_by["full"] == 2 * unit
assert flops["full"] * 3 == flops["none"] * 4
extra, core = flops["selective"] - flops["none"], 4 * 2 * 128**2 * 256
assert 2 * extra == core and abs(core / flops["none"] - 128 / (18 * 256 + 3 * 128)) < 1e-9

# %% [markdown]
# ## 5. When is it full?
# A step holds all of this, but not all of it at one time.
#
# **A step has a forward, a backward and the optimizer's step. At which moment does it hold most?**

# %%
my_guess = ...

# %% [markdown]
# After every operation `memory.peak` notes what the step holds on top of weights, master copies and moments.

# %%
# %%px
layers = nn.ModuleList(TransformerLayer(width=128, heads=8) for _ in range(3)).to(device, torch.bfloat16)
adam = MixedAdam(layers.parameters())
inputs = torch.randn(4, 128, 128, device=device, dtype=torch.bfloat16)


def step(how):
    with memory.peak() as seen:
        seen.mark("forward")
        y = inputs
        for part in layers:
            y = run_layer(part, y, how)
        seen.mark("backward")
        y.square().mean().backward()
        seen.mark("optimizer")
        adam.step()
        adam.zero_grad()
    return seen


first = step("none")  # makes the moments
peaks = {how: step(how) for how in ("none", "full")}

# %% [markdown]
# Bytes held, from the first layer to the optimizer's end:

# %%
draw.memory_curve({how: ranks["peaks"][0][how] for how in ("none", "full")})

# %% [markdown]
# Where forward turns into backward: all layers keep their activations, and the first gradients are there. Then backward walks down: each
# layer's activations go, its gradients come, and the slope is the difference. The optimizer has a hill of its own, for it widens the
# gradients to float32. (With few tokens and many weights that hill is the higher one: make `inputs` smaller and look again.)
#
# So the peak is not the sum of all kinds: activations and gradients take turns. With full recompute the forward keeps almost nothing. Backward
# then climbs once for each layer, which holds what it computed again on top of the gradients so far.
#
# $$\text{peak} \approx \text{states without gradients} + \max(\text{activations},\ \text{gradients} + \text{float32 gradients})$$

# %% tags=["check"]
none, full = ranks["peaks"][0]["none"], ranks["peaks"][0]["full"]
backward, optimizer = (index for index, name in none.marks[1:])
activations = 3 * memory.activation_bytes(4, 128, 128, heads=8)
assert none.curve.index(none.bytes) < optimizer and activations < none.bytes < 1.2 * activations
assert max(none.curve[: backward + 1]) > 0.9 * none.bytes and full.bytes < 0.6 * none.bytes

# %% [markdown]
# ## 6. Half of everything?
# "Tensor parallelism over two GPUs should halve the memory. Mine fell by 40 %, because communication was not overlapped."
#
# **Each of two ranks takes half of the heads and half of the MLP. Which part of the layer's model states does it hold, and
# which part of its activations?**

# %%
my_guess = ...

# %% [markdown]
# Lesson 05 builds that layer. To weigh one rank's part of it, no communication is needed:

# %%
# %%px
part = TransformerLayer(width=256, heads=4, head_width=32, hidden=512).to(device, torch.bfloat16)


def weigh(layer):
    adam = MixedAdam(layer.parameters())
    layer(x).square().mean().backward()
    adam.step()
    held = memory.held(layer, adam)
    return held.total - held["other"], memory.saved(layer, x).bytes


whole, half = weigh(layer), weigh(part)
[round(b / a, 3) for a, b in zip(whole, half, strict=True)]

# %% [markdown]
# Half of the states, and 59 % of the activations. The products are split, so their inner results are: q, k, v, scores, the wide
# part of the MLP. What is $D$ wide is whole on both ranks: the inputs of the norms and of the products, and the dropout after them.
# The 34 is 24 + 10, and only the 24 is divided, by the number of ranks, the paper's $t$:
#
# $$sbh\left(10 + \frac{24}{t} + 5\,\frac{as}{ht}\right)$$
#
# What share stays depends on the shape, and on what is recomputed:

# %%
shapes = {"this layer": (2, 128, 256, 8), "7 B model": (1, 2048, 4096, 32), "long": (1, 16384, 4096, 32)}
for name, shape in shapes.items():
    for how in ("none", "selective"):
        share = memory.activation_bytes(*shape, recompute=how, tp=2) / memory.activation_bytes(*shape, recompute=how)
        print(f"{name:11} {how:10} {share:.3f}")

# %% [markdown]
# **Verdict.** It does not halve: two ranks keep 0.5 of the states and 0.5 to 0.65 of the activations, so "fell by 40 %" is an ordinary
# mixture. Overlap has nothing to do with it: nothing was sent in the cell above, and the share was already there. When a message travels
# changes *when* a step is done, not what it holds. Sequence parallelism (lesson 06) divides the remaining 10.

# %% tags=["check"]
(states_share, kept_share) = (b / a for a, b in zip(ranks["whole"][0], ranks["half"][0], strict=True))
assert 0.5 < states_share < 0.51
assert abs(kept_share / ((10 + 24 / 2 + 10) / (34 + 20)) - 1) < 0.005

# %% [markdown]
# ## 7. Will it fit?
# From the counts above follow *rates*: bytes a parameter, and bytes a token of a layer. With them your small step becomes any model.
#
# **Will 10 B parameters train on one GPU of 80 GB? How many such GPUs would 70 B fill?**

# %%
my_guess = ...

# %% [markdown]
# `Rates.measured` divides what was counted in sections 1 and 4 by the sizes that it was counted for.

# %%
rates = memory.Rates.measured(
    ranks["held"][0], ranks["num_parameters"][0], ranks["kept_by"][0], batch=2, tokens=128, width=256, heads=8
)
rates

# %% [markdown]
# A piggy bank is one GPU, filled in the order of the list. Move the sliders: is there a way to get 10 B into one?

# %%
draw.piggy_bank_sliders(rates, billions=10, layers=48)

# %% [markdown]
# There is none. Recompute and fewer tokens shrink the activations; the 160 GB of states do not move. And 70 B, with everything that one
# rank can do for itself:

# %%
large = rates.model(70e9, layers=80, tokens=4096, batch=1, recompute="full")
draw.piggy_bank(large, title="70 B parameters, 80 layers\n1 x 4,096 tokens, recompute full")

# %% [markdown]
# **Verdict.** One GPU of 80 GB holds the states of five billion parameters, and not a token more. 10 B fill two, 70 B fourteen and a bit, if
# somebody could cut the bytes into equal parts. Sections 4 to 6 made activations smaller. Nothing here touches the sixteen bytes:
# for that, ranks have to share states, by splitting each weight (lesson 05) or by each keeping a piece of everything (lesson 07).

# %% tags=["check"]
assert abs(sum(rates.states.values()) - 16) < 1e-9 and abs(rates.scores - 5) < 0.01 and abs(rates.linear / 34 - 1) < 0.005
assert all(sum(rates.model(10e9, 48, 512, 1, how).values()) > 80e9 for how in memory.RECOMPUTE)
assert 80e9 / 16 == 5e9 and 14 < sum(large.values()) / 80e9 < 15

# %% [markdown]
# What is not in the bank: while this optimizer steps, every gradient once more in float32 (section 5), four bytes a parameter, so that on one GPU
# of 80 GB four billion are the most. And each process on a GPU pays for the CUDA context, NCCL for its buffers, the allocator for blocks that it
# keeps and does not use. On a GPU this cell shows what they come to; on a CPU there is nothing to show.

# %% tags=["nbval-ignore-output"]
# %%px
counted = memory.held(layers, adam, alive=True)
if device.type == "cuda":
    free, total = torch.cuda.mem_get_info()
    print(f"counted {counted.total:,}, allocator {counted.allocated:,}, the card {total - free:,} bytes")

# %% [markdown]
# ## You saw
# You saw sixteen bytes a parameter, or twelve for those who can do without small steps; $sbh(34 + 5as/h)$ bytes of activations in a layer, 34
# for one or two per cent more operations and 2 for a third more; a peak where forward turns into backward; and why half a layer is
# more than half of the bytes. In the exercises you write the two counters, keep less with equal gradients, and find a tensor that
# is alive too long.
#
# **One case that fails.** A batch of 8 does not fit, but 2 on each of four ranks do. So let every rank train on its own part of the
# batch. They start from the same weights:

# %%
# %%px
torch.manual_seed(3)
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(100 + rank)
part_of_batch = torch.randn(2, 64).to(device)
model(part_of_batch).square().mean().backward()
optimizer.step()
weight = model.weight.detach()

# %% [markdown]
# It fits. After the first step, is it still one model?

# %% tags=["raises-exception"]
weights = ranks["weight"]
assert all(weight.equal(weights[0]) for weight in weights), "every rank has a model of its own"

# %% [markdown]
# It is not: each rank followed its own gradient. Lesson 04 makes the ranks agree.
