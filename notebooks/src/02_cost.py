# %% [markdown]
# # 02 Cost
# **After this you can predict how long a collective takes before you run it, from two numbers that you measured, and say
# which link a model needs.** About 55 minutes; uses lesson 01.
#
# Lesson 01 counted steps and bytes. It ended with two hundred small sums that took many times as long as one large sum of the
# same bytes. Here you find out what was paid, put a number on it, and use the number.

# %%
from tpcourse import costs, draw, show_source, start_ranks

ranks = start_ranks()

# %% [markdown]
# ## 1. A thousand times as much
# **An all-reduce of one number moves four bytes. One of a thousand numbers moves a thousand times as many. How many times as
# long does it take?**

# %%
my_guess = ...

# %% [markdown]
# A single reading of a clock tells little. `median_seconds` alternates the calls in random order, takes the slowest rank's
# time, because the others wait for it, and reports the median of many samples.

# %%
# %%px
from tpcourse import wire
from tpcourse.ranks.timing import median_seconds

arrays = {n: torch.randn(n, device=device) for n in (1, 1_000, 1_000_000)}
calls = {n: lambda x=x: wire.all_reduce(x, group=world) for n, x in arrays.items()}
took = median_seconds(calls)

# %% [markdown]
# Times differ from machine to machine, so this is yours: a thousand numbers over one number, then a million over one.

# %% tags=["nbval-ignore-output"]
took = ranks["took"][0]
[round(took[n] / took[1], 1) for n in (1_000, 1_000_000)]

# %% [markdown]
# Nowhere near a thousand times as long, and not for a million numbers either. Whatever a message carries, something is paid before its first byte
# moves: the library is called, ranks find each other, a kernel is launched. Call that $\alpha$, in seconds a message. After
# it each byte costs $\beta$ seconds, one over the bandwidth:
#
# $$T(n) = \alpha + n\,\beta$$
#
# At $n = \alpha/\beta$ bytes the two are equal. Far below it you pay for messages, far above it for bytes, and that is why many
# small messages are slow. DDP's buckets, in lesson 04, exist for this reason.

# %% tags=["check"]
assert took[1_000] < 100 * took[1], "a thousand times the bytes, and far from a thousand times as long"

# %% [markdown]
# ## 2. Two numbers
# Measure many sizes and lay a line through them; its start is $\alpha$ and its slope is $\beta$. No machine is quiet for long. Below, six times lie on
# $\alpha$ = 100 µs and 1 GB/s, but the largest was disturbed and took 30 % longer.
#
# **Ordinary least squares makes the squared errors small, in seconds. The smallest array took 104 µs. What does the fitted line say of it: about
# that, a tenth less, or a third of it?**

# %%
my_guess = ...

# %% [markdown]
# Fitted twice: to errors in seconds, as `numpy.polyfit` does, and to relative errors. In µs:

# %%
import numpy as np

sizes = [4096 * 4**step for step in range(6)]
times = [100e-6 + n / 1e9 for n in sizes]
times[-1] *= 1.3
beta, alpha = np.polyfit(sizes, times, 1)
relative = costs.fitting.least_squares(sizes, times)
[round(1e6 * (a + b * sizes[0])) for a, b in ((alpha, beta), relative)]

# %% [markdown]
# A third. The largest array's error is twelve times the whole time of the smallest, so in seconds the large arrays decide alone. Divide each equation
# $\alpha + \beta n = t$ by its own $t$, and all of them count alike:
#
# $$\min_{\alpha, \beta} \sum_i \Big(\frac{\alpha + \beta n_i}{t_i} - 1\Big)^2$$

# %%
show_source(costs.fitting.least_squares)

# %% [markdown]
# Now your machine. On GPUs from 1 MiB to 1 GiB, on the CPU from 4 KiB to 4 MiB, each size twice the last. Sizes are those of the whole array, here
# and everywhere. Every other size is put aside for section 3.

# %%
from tpcourse.ranks.timing import time_collectives

first = 2**20 if ranks.backend == "nccl" else 2**12
found = ranks.run(time_collectives, [first * 2**step for step in range(11)], repeats=10)[0]
measured, unseen = costs.every_other(found)
fits = costs.fit_each(measured)

# %%
draw.cost_fit(measured, fits)

# %% [markdown]
# Both axes are logarithmic, so a line is not straight: flat where $\alpha$ rules, rising where $\beta$ does, with the bend at
# $\alpha/\beta$. Each collective has a line of its own. Libraries change their protocol with the size, so the truth has more bends than one;
# two numbers are what a person can keep in mind.

# %% tags=["check"]
exact = [costs.Measurement("all_reduce", 4, n, 2e-4 + 1e-9 * n) for n in sizes]
line = costs.fit(exact)
assert abs(line.alpha_s / 2e-4 - 1) < 1e-6 and abs(line.beta_s_per_byte / 1e-9 - 1) < 1e-6
assert 0.25 < (alpha + beta * sizes[0]) / times[0] < 0.35 and round(0.3 * times[-1] / 1.3 / times[0]) == 12

# %% [markdown]
# ## 3. Predict, then measure
# A fit that only describes what it has seen is worth little. The sizes in `unseen` lie between the others, and the fit has not met them.
#
# **Half of the predictions are off by less than how many per cent?**

# %%
my_guess = ...

# %% [markdown]
# The median of $|\text{predicted} / \text{measured} - 1|$, in per cent:

# %% tags=["nbval-ignore-output"]
error = costs.median_error(fits, unseen)
round(100 * error)

# %%
draw.cost_fit(measured, fits, unseen, recorded=costs.recorded())

# %% [markdown]
# Hollow points were not fitted. A run that was recorded on GPUs is in grey: same formula, same fit, other numbers. A line
# that is off by a third at most is enough to choose an algorithm, a link or a bucket, because those choices differ by
# factors. It is not enough to claim ten per cent: for that you measure.
#
# Do not carry $\alpha$ and $\beta$ over to another machine, another number of ranks, or sizes far outside of what you measured.

# %% tags=["check"]
limit = 0.15 if ranks.backend == "nccl" else 0.35
assert error < limit, f"half of the predictions are off by more than {limit:.0%}"

# %% [markdown]
# ## 4. Two bandwidths
# Bytes over seconds is a bandwidth. People quote two of them, and they differ.
#
# **A ring all-reduces 1 GB over links of 450 GB/s. It took 2 ranks 2.2 ms. What do 64 ranks on the same links need: the same, half, about
# twice, or 32 times as long?**

# %%
my_guess = ...

# %% [markdown]
# `costs` has the time of every algorithm of lesson 01 as a formula, $\text{steps}\cdot\alpha + \text{bytes}\cdot\beta$, and figures for links. GB/s in
# the last two columns:

# %%
for p in (2, 8, 64):
    t = costs.seconds("all_reduce", 1e9, p, "NVLink 4", algorithm="ring")
    m = costs.Measurement("all_reduce", p, 10**9, t)
    print(f"{p:3} ranks {1e3 * t:5.2f} ms {m.algorithm_bytes_per_s / 1e9:5.0f} {m.bus_bytes_per_s / 1e9:5.0f}")

# %% [markdown]
# About twice. The *algorithm bandwidth* is what you feel: bytes of your array over seconds. It falls with $p$, because a ring sends
# $2\tfrac{p-1}{p}n$ bytes on each link, one array at 2 ranks and nearly two at 64. The *bus bandwidth* counts what crossed the link:
#
# $$B_{bus} = \frac{n}{T} \cdot \begin{cases} 2\tfrac{p-1}{p} & \text{all-reduce} \\ \tfrac{p-1}{p} & \text{all-gather, reduce-scatter, all-to-all} \\ 1 & \text{broadcast, reduce}\end{cases}$$
#
# Hold it against the link's data sheet: it is the same at every $p$, but for $\alpha$, which 64 ranks pay 126 times. Yours, by size:

# %%
draw.bandwidths(measured)

# %% [markdown]
# What is missing at small sizes is $\alpha$; by the model a long enough ring shows the link's own figure, on any number of ranks. Recorded for 1 GiB
# over NVLink, in groups of two and of four GPUs:

# %% tags=["nbval-ignore-output"]
draw.by_ranks(*draw.recorded_scale("bus"), ylabel="bus GB/s")

# %% [markdown]
# The all-reduce is nearly the same, 331 and 355 GB/s, while its algorithm bandwidth falls from 331 to 237. The other two have less on two GPUs, about
# 275, and 330 on four.

# %% tags=["check"]
for p in (2, 4, 8, 64):
    t = costs.seconds("all_reduce", 1e11, p, "NVLink 4")
    bus = costs.Measurement("all_reduce", p, 10**11, t).bus_bytes_per_s
    assert abs(bus / 450e9 - 1) < 0.01

# %% [markdown]
# ## 5. Ring or tree
# Few steps or few bytes: lesson 01 left that open. With $\alpha$ and $\beta$ it is arithmetic.
#
# **A thousand and twenty-four ranks over NVLink, $\alpha$ = 3.4 µs. From which size on is a ring faster than a tree: 1 kB, 1 MB or
# 100 MB?**

# %%
my_guess = ...

# %% [markdown]
# Set the two times equal and solve for $n$; that is `crossing`. In MB:

# %%
round(costs.crossing(1024, "NVLink 4") / 1e6)

# %% [markdown]
# Below that the ring's 2,046 steps cost more than the bytes that the tree repeats:
#
# $$\underbrace{2(p-1)\alpha + 2\tfrac{p-1}{p}n\beta}_{\text{ring}} \;<\; \underbrace{2\lceil\log_2 p\rceil\,(\alpha + n\beta)}_{\text{tree}}$$
#
# Does the formula hold for messages that you can see? On your ranks, time the ring of `tpcourse.wire` at some sizes, and the tree and the naive
# all-reduce at the same ones.

# %%
# %%px
ways = ("ring", "tree", "naive")
lengths = [2**k for k in range(10, 21, 2)]                         # elements of 4 bytes
x = torch.randn(max(lengths), device=device)
kernels = {way: getattr(wire, f"{way}_all_reduce") for way in ways}
calls = {
    (way, n): lambda run=kernels[way], n=n: run(x[:n], group=world) for way in ways for n in lengths
}
took = median_seconds(calls, repeats=7, in_a_row=2)

# %% [markdown]
# From the ring's times alone come $\alpha$ of one message and $\beta$ of one byte. Points are measured; the curves of tree and naive are predicted
# from the ring.

# %%
took, p = ranks["took"][0], len(ranks)
times = {way: {4 * n: t for (name, n), t in took.items() if name == way} for way in ("ring", "tree", "naive")}
ring = [costs.Measurement("all_reduce", p, n, t) for n, t in times["ring"].items()]
link = costs.fit(ring).as_link("ring")
draw.algorithm_times(p, link, times)

# %% [markdown]
# Do points and curves agree? Where each rank has a GPU or a core of its own, they should. If the points of tree and naive lie far *below* their curves,
# your ranks share cores: in every step of a ring all of them are busy, in a tree half of them wait, and the others have the cores to themselves. There
# the ring may lose at every size that you see, whatever the mark says. The model knows nothing of cores; it gives every pair of ranks a
# link, and every rank its own time.
#
# At 4 ranks, at 8 and at every higher power of two halving and doubling lies below both, by the model: few steps *and* few bytes. Libraries use rings all the same, because in halving and
# doubling all ranks talk across the machine at once, and real links are shared. A model is also what it leaves out: contention, and the
# time of adding.
#
# At 2 and 3 ranks the tree has no advantage at all: as many steps, more bytes.

# %% tags=["check"]
n = costs.crossing(1024, "NVLink 4")
ring_s, tree_s = (costs.seconds("all_reduce", n, 1024, "NVLink 4", way) for way in ("ring", "tree"))
assert abs(ring_s / tree_s - 1) < 1e-9 and 100e6 < n < 200e6
assert costs.crossing(2, "NVLink 4") == costs.crossing(3, "NVLink 4") == 0

# %% [markdown]
# ## 6. The link that tensor parallelism needs
# Tensor parallelism splits a product $[M, K] \times [K, N]$ by columns: each of $p$ ranks multiplies with $N/p$ of them. Before that an all-gather brings
# the activations together. Let $r$ be the time of the gather over the time of the product.
#
# (The letters of this section and the next are those of papers on speed, not those of lesson 00: $M$ is the number of tokens, $F$ a GPU's FLOP/s
# and $B$ a link's bytes a second.)
#
# **You double the tokens $M$ in a batch. Does the gather become a smaller part of the time?**

# %%
my_guess = ...

# %% [markdown]
# Eight H100s over NVLink, by figures on paper, for 1, 2 and 16 thousand tokens:

# %%
K, N, p = 8192, 57344, 8
F, B = costs.PEAK_FLOPS["H100"], costs.LINKS["NVLink 4"].bytes_per_s
for M in (1024, 2048, 16384):
    gather_s = (p - 1) / p * 2 * M * K / B                           # bf16: 2 bytes
    product_s = costs.product_flops(M, K, N // p) / F
    print(f"{M:6} tokens  r = {gather_s / product_s:.3f}")

# %% [markdown]
# It does not. The gather carries $\tfrac{p-1}{p}\,2MK$ bytes, the product takes $2MK\tfrac{N}{p}$ FLOPs: $M$ and $K$ cancel.
#
# $$r = \frac{F\,(p-1)}{p\,N_{local}\,B} = \frac{F}{B}\cdot\frac{p-1}{N}$$
#
# Only one of three sizes is left, the width that is split, and it works against $p$. A faster GPU makes $r$ *worse*: it multiplies sooner and gathers
# as before. If gather and product overlap perfectly, the time falls by $(1+r)/\max(1, r)$, at most a factor of two.
#
# And on your own ranks? The product and the gather of two batches, the second with four times the tokens:

# %%
# %%px
def pair(tokens, inner=512, columns=512):
    whole, weight = torch.randn(tokens, inner, device=device), torch.randn(inner, columns, device=device)
    shard = whole[: tokens // world_size]
    gather, product = lambda: wire.all_gather(shard, group=world), lambda: whole @ weight
    return {("gather", tokens): gather, ("product", tokens): product}


took = median_seconds(pair(1024) | pair(4096), repeats=7)

# %% [markdown]
# $r$ of the small batch and of the large one:

# %% tags=["nbval-ignore-output"]
took = ranks["took"][0]
[round(took["gather", tokens] / took["product", tokens], 2) for tokens in (1024, 4096)]

# %% [markdown]
# Not four times apart, as the tokens are; what the small batch has more is $\alpha$, which does not cancel. Now a whole layer of a model with 70 billion parameters: four products, each with a gather before or a
# scatter after it. A disc is a group of 2, 4 or 8 ranks; in the grey they talk longer than they multiply.

# %%
ratios = {
    name: {p: costs.layer_ratio("Llama 3 70B", p, F, link.bytes_per_s) for p in (2, 4, 8)}
    for name, link in costs.LINKS.items()
    if name != "loopback"
}
draw.link_ratios(ratios, "Llama 3 70B on 2, 4 and 8 x H100, by figures on paper")

# %% [markdown]
# For this model and this GPU NVLink carries eight ranks, PCIe 5 and a 400 Gb/s card for each GPU carry two, PCIe 4 and 100 Gb/s none. It is a
# ratio of three numbers. Change one and ask again:

# %%
draw.cost_sliders()

# %% [markdown]
# Move the tokens down to 64: now $\alpha$ counts, tokens no longer cancel, and by this model eight ranks gain nothing over one. It leaves out that so
# small a product waits for its weights to be read from memory. Eight ranks share that, so inference, a few words at a time, gains all the same.

# %% tags=["check"]
assert abs(ratios["NVLink 4"][8] / (4 * F * 7 / (450e9 * (144 * 128 + 3 * 28672))) - 1) < 1e-9
fits_up_to = {name: costs.largest_tp("Llama 3 70B", F, link.bytes_per_s) for name, link in costs.LINKS.items()}
assert (fits_up_to["NVLink 4"], fits_up_to["PCIe 5"], fits_up_to["400 Gb/s"], fits_up_to["100 Gb/s"]) == (8, 2, 2, 1)

# %% [markdown]
# ## 7. Out of the node
# Figures on paper are not a network. One machine plays two hosts, a rank on each, with a cable between them that is shaped to 10 and to 1 Gb/s: a small
# GPT was trained over it in two ways. Tensor parallel ranks share each product; data parallel ranks (lesson 04) each take half of the batch and sum
# their gradients once a step.
#
# **Let $r$ be the time of a step's collectives over the time that it computes. Now every step gets sixteen times as many tokens. Whose $r$ falls
# and falls: tensor's, data's or both?**

# %%
my_guess = ...

# %% [markdown]
# What was recorded with `tpcourse bench link --record`, both ways with as many FLOPs on a rank:

# %%
cables = costs.recorded_link()
draw.link_share({name: cables[name] for name in ("10 Gb/s", "1 Gb/s")})

# %% [markdown]
# Data's. It sends its gradients once, however many tokens were in the step: its $r$ falls eight to ten times on both cables. Tensor parallelism sends the
# activations of every token. On the faster cable, where $\alpha$ was most of it, its $r$ falls too, until only bytes are left; on the slower one it does
# not fall. (10 Gb/s were not reached: two cores that copy for TCP get 4.6.) The parameters cancel in one ratio, the tokens in the other:
#
# $$r_{data} = \frac{2F(p-1)}{3\,p\,M\,B} \qquad r_{tensor} = \frac{4F(p-1)}{B\,(N_1 + N_2 + K_1 + K_2)}$$
#
# The first is of a whole step, with $M$ tokens a rank. The second is of forward, with $N_1, N_2$ the widths that are split by columns and $K_1, K_2$ those
# by rows; backward has as many collectives and twice the products, so of a whole step it is two thirds. So under data parallelism a larger
# batch makes up for a slow link, and under tensor parallelism it does not. These ranks were CPU cores. An H100 multiplies ten thousand times as fast,
# so while it waits as long, it misses ten thousand times as many products. Put the cables' measured bandwidths beside that of NVLink, which between
# two H200 was two thirds of what the paper says:

# %%
links = costs.recorded_links()
beside = {"NVLink 4": costs.LINKS["NVLink 4"], "NVLink, measured": links["NVLink"], "400 Gb/s": costs.LINKS["400 Gb/s"]}
beside |= {f"{name}, measured": links[name] for name in ("10 Gb/s", "1 Gb/s")}
draw.link_ratios(
    {name: {p: costs.layer_ratio("Llama 3 70B", p, F, link.bytes_per_s) for p in (2, 4, 8)} for name, link in beside.items()},
    "Llama 3 70B on H100s: two links on paper, three as measured",
)

# %% [markdown]
# "Tensor parallelism only inside a node." **Verdict:** right for the links between most nodes, and a ratio, not a law. Over NVLink eight ranks talk for
# less time than they multiply; over the faster of these cables two of them would talk for dozens of times as long, whatever the batch. Where nodes are joined
# by links as fast as NVLink it is a matter of taste again. Across slow links use data parallelism, and give each rank enough tokens:

# %%
speed = costs.LINKS["10 Gb/s"].bytes_per_s
{tokens: round(costs.gradient_ratio(2, tokens, F, speed), 2) for tokens in (2**14, 2**18, 2**22)}

# %% [markdown]
# At a quarter of a million tokens a rank the two are equal, at four million the gradients cost six per cent. That is why large clusters have large batches.

# %% tags=["check"]
small, large = (cables["1 Gb/s"]["steps"][i] for i in (0, -1))
assert large["tokens"] == 16 * small["tokens"]
assert large["data_ratio"] < small["data_ratio"] / 3 and large["tensor_ratio"] > small["tensor_ratio"] / 3
assert costs.layer_ratio("Llama 3 70B", 2, F, links["10 Gb/s"].bytes_per_s) > 10
assert links["1 Gb/s"].bytes_per_s < links["10 Gb/s"].bytes_per_s < links["NVLink"].bytes_per_s / 100
assert 0.5 < links["NVLink"].bytes_per_s / costs.LINKS["NVLink 4"].bytes_per_s < 1
assert 0.5 < 8 * links["1 Gb/s"].bytes_per_s / 1e9 < 1.5

# %% [markdown]
# ## You saw
# You saw that a message costs $\alpha$ before its first byte, that two fitted numbers predict sizes nobody measured, that bus bandwidth is the one to hold
# against a data sheet, that the size decides between ring and tree, that one ratio, $F(p-1)/(NB)$, says which link a split product needs, and that
# more tokens help data parallelism across a slow link and tensor parallelism not at all.
#
# The exercises (`exercises/02_cost.ipynb`) let you write the fit, predict a run before it is made, choose a bucket size, and find where a model stops
# gaining from more ranks.
#
# **One case that fails.** By its $r$ the 70 B model runs well on eight H100s over NVLink. Training with Adam holds 16 bytes for each parameter, and
# the card has 80 GB.

# %% tags=["raises-exception"]
held_bytes = 16 * 70e9 / 8
assert held_bytes <= 80e9, f"{held_bytes / 1e9:.0f} GB on each rank, before a single activation"

# %% [markdown]
# Fast enough, and it does not fit. Lesson 03 counts the bytes that stay.
