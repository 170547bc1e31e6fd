# %% [markdown]
# # 00 Ranks
# **After this you can start ranks, run a cell on each of them, put them into groups, and read the report
# when they wait for each other.** About 40 minutes. You need Python and a little PyTorch; a GPU is welcome,
# not needed.
#
# A model too large for one GPU is trained by many processes at once. The mathematics of that is short. What
# costs people their evenings is something else: one process waits for a message that nobody will send, and
# the machine looks busy for ever. So in this lesson you get stuck, five times, on purpose.
#
# **How a lesson works.** Every section asks one question in bold. Put your answer into the cell `my_guess =
# ...` before you run on; nobody reads it, and a wrong guess teaches more than none. A short cell gives the
# answer, the text says why, and a check either prints nothing or stops you. Run the cells in order, with
# Shift+Enter.

# %% [markdown]
# ## 1. A rank is a process
# The next cell starts them. With two or more GPUs there is one rank for each GPU; otherwise there are four,
# on the CPU. (An odd number of GPUs? Say `start_ranks(2)`: the grid of section 3 needs an even number.)
# `patience=5` is how many seconds a stuck cell may wait here before you get a report.

# %%
from tpcourse import draw, start_ranks

ranks = start_ranks(patience=5)

# %% [markdown]
# A cell that begins with `%%px` does not run in the notebook. It runs on every rank, and there it finds six
# names: `rank`, `world_size`, `device`, `world`, `torch` and `dist` (which is `torch.distributed`).
#
# **Every rank makes a list `x`. Rank 0 changes its first element. What does rank 1 hold?**

# %%
my_guess = ...

# %%
# %%px
x = [0, 0, 0]
if rank == 0:
    x[0] = 100

# %% [markdown]
# `ranks["x"]` fetches the variable `x` of every rank into a list. Here is the entry of rank 1:

# %%
ranks["x"][1]

# %% [markdown]
# Rank 1 still holds zeros. A rank is a whole process: its own Python, its own memory, on a GPU machine its
# own card. Ranks share **nothing**. The cell ran on all of them, from the same text, and the only thing
# that differed was the number `rank`, which goes from 0 to `world_size - 1`. That is the whole style,
# called *single program, multiple data*: one program, and `rank` decides who does what.
#
# The notebook is one more process, which is no rank. It has no `x` either, until it asks.

# %% tags=["check"]
assert ranks["rank"] == list(range(len(ranks))) and "x" not in globals()

# %% [markdown]
# ## 2. They can only send
# If nothing is shared, everything that one rank knows of another was sent to it. A *collective* is a call
# that all ranks of a group make together; `all_reduce` adds their tensors, element by element.
#
# **Rank 0 holds 3, rank 1 holds 4, any other rank 0. Which ranks know the sum after `all_reduce`?**

# %%
my_guess = ...

# %% [markdown]
# `group=world` means all ranks; it is also the default. Later you will have smaller groups.

# %%
# %%px
mine = {0: 3.0, 1: 4.0}.get(rank, 0.0)
value = torch.tensor([mine], device=device)
dist.all_reduce(value, group=world)
value.item()

# %% [markdown]
# All of them know it: 7, everywhere, written over the tensor that you passed. No rank is special, so the
# call needs no address. What it needs is that **every rank of the group makes it**. A rank that arrives
# early waits for the last, because the sum is not there before the last number is. Remember this sentence;
# the second half of the lesson is what happens when it is not true.
#
# $$\text{value}_r \leftarrow \sum_{s=0}^{p-1} \text{value}_s \qquad\text{for each rank } r$$

# %% tags=["check"]
# %%px
assert value.item() == 3.0 + 4.0

# %% [markdown]
# Who carries the numbers? On NVIDIA GPUs **NCCL** does, over NVLink, PCIe or the network, while your program
# goes on. Between processes on the CPU **gloo** does, over sockets. You write the same calls for both; only
# the times differ. Your ranks use:

# %% tags=["nbval-ignore-output"]
ranks

# %% [markdown]
# ## 3. Groups: a grid of ranks
# The course writes every shape in the same letters. A slash marks a shard: `[B, T, F/p]` is a tensor whose
# last dimension is split over the $p$ ranks of a group.

# %%
from tpcourse.dims import LETTERS

print("\n".join(f"{letter}  {meaning}" for letter, meaning in LETTERS.items()))

# %% [markdown]
# Large models are split in two ways at once. Ranks of a `tp` group (tensor parallel) hold different parts
# of one weight; ranks of a `dp` group (data parallel) hold the same part and read different data. Draw the
# ranks as a grid, counted row by row, with **two** ranks in a row: a row is a `tp` group, a column is a
# `dp` group.
#
# **With whom does rank 1 add, if it calls `all_reduce` on its `tp` group? How many groups is each rank
# in?**

# %%
my_guess = ...

# %% [markdown]
# `init_device_mesh` is PyTorch's word for such a grid. It makes all the groups at once, and gives each an
# axis name.

# %%
# %%px
from torch.distributed.device_mesh import init_device_mesh

shape = (world_size // 2, 2)                    # 2 ranks in a row
mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))
tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
row = dist.get_process_group_ranks(tp)
column = dist.get_process_group_ranks(dp)

# %% [markdown]
# The row of rank 1, and then all rows (solid) and columns (dashed) of your ranks:

# %%
ranks["row"][1]

# %%
draw.grid(ranks["shape"][0], ("dp", "tp"))

# %% [markdown]
# Rank 1 adds with rank 0 only. Every rank is in three groups: `world`, its row and its column. A row and a
# column meet in one rank, and in no other; that is what makes the grid useful. A weight split over `tp`
# exists once in each row, so its gradients are averaged down the columns, and no number is counted twice.
#
# $$\text{rank} = r_{dp} \cdot p_{tp} + r_{tp}, \qquad p_{dp} \cdot p_{tp} = \text{world size}$$
#
# Neighbours in a row have neighbouring numbers, so with eight GPUs in a machine a row stays inside it.
# Tensor parallelism talks most, and gets the fastest link.

# %% tags=["check"]
for r, (row, column) in enumerate(zip(ranks["row"], ranks["column"], strict=True)):
    assert set(row) & set(column) == {r} and len(row) * len(column) == len(ranks)

# %% [markdown]
# ## 4. Somebody does not call
# Now break the sentence of section 2.
#
# **Rank 1 returns before the `all_reduce`. What do the others do, and what do you see?**

# %%
my_guess = ...

# %% [markdown]
# This is how it happens in real code: an early `return`, an exception, a loop with one batch fewer on one
# rank. The cell below ends with an error. It is meant to.

# %% tags=["raises-exception"]
# %%px
def step(batch):
    if len(batch) == 0:
        return batch
    dist.all_reduce(batch, group=world)
    return batch


batch = torch.ones(0 if rank == 1 else 3, device=device)
batch = step(batch)

# %% [markdown]
# The others wait inside `all_reduce`, and on most machines they would wait until somebody kills them. Here
# a watcher in every rank notes each call as it begins and ends. After `patience` seconds without progress
# it stops the cell and raises `RanksStuck`.
#
# Read the report from the top. One sentence names the rank, the call and the line in your cell; `cell 7` is
# the one with [7] beside it. The table says, for each rank, the last call it *finished* and what it does
# *now*; `#2` is the second call on that group. Then come the rule that was broken and what has been repaired: the groups are new, and your
# variables are still there.

# %% tags=["check"]
# %%px
one = torch.ones(1, device=device)
dist.all_reduce(one, group=world)
assert one.item() == world_size and len(x) == 3

# %% [markdown]
# ## 5. Everybody calls, in another order
# Nobody is missing this time. Every rank makes the same two calls; `broadcast` copies the tensor of rank 0
# (its `src`) to all others.
#
# **Rank 0 sums first and broadcasts second. The others broadcast first. Does it work?**

# %%
my_guess = ...

# %% [markdown]
# Both calls are legal, and each is made by every rank of the group.

# %% tags=["raises-exception"]
# %%px
a, b = torch.ones(3, device=device), torch.ones(3, device=device)
if rank == 0:
    dist.all_reduce(a, group=world)
    dist.broadcast(b, src=0, group=world)
else:
    dist.broadcast(b, src=0, group=world)
    dist.all_reduce(a, group=world)

# %% [markdown]
# Calls have no names that travel with the data. The first call of one rank meets the first call of the
# others, whatever they are, so a group is a queue: **same calls, same order, on every rank**. Plain PyTorch
# may hang here, or abort, or hand back wrong numbers.
#
# Each group has a queue of its own. That gives a second way to get stuck, with two groups over the same two
# ranks. All ranks must help to make a group, also those that are not in it; `group_desc` is its name in
# reports.

# %%
# %%px
left = dist.new_group([0, 1], group_desc="left")
right = dist.new_group([0, 1], group_desc="right")

# %% [markdown]
# `--targets 0,1` runs a cell on these two only. Rank 0 uses `left` first, rank 1 uses `right` first:

# %% tags=["raises-exception"]
# %%px --targets 0,1
first, second = (left, right) if rank == 0 else (right, left)
dist.all_reduce(a, group=first)
dist.all_reduce(a, group=second)

# %% [markdown]
# Rank 0 waits in `left` for rank 1, which waits in `right` for rank 0. "Two groups over the same ranks
# deadlock" is something people repeat, and it blames the groups. Keep the groups and give both ranks one
# order:

# %%
# %%px --targets 0,1
dist.all_reduce(one, group=left)
dist.all_reduce(one, group=right)

# %% [markdown]
# **Verdict.** Both sums arrived, each of them doubling `one`: the same two groups that were stuck finish as
# soon as the order agrees. Overlapping groups are safe, and every lesson uses them; the crossed order is
# not.

# %% tags=["check"]
# %%px --targets 0,1
assert one.item() == world_size * 2 * 2

# %% [markdown]
# ## 6. Messages that do not fit
# The smallest call has two ends: `dist.send(x, dst=1)` on one rank, `dist.recv(x, src=0)` on the other.
#
# **Rank 0 sends three numbers to rank 1, and rank 1 never asks for them. Can rank 0 go on?**

# %%
my_guess = ...

# %% [markdown]
# Three numbers would fit into any buffer on the way.

# %% tags=["raises-exception"]
# %%px
if rank == 0:
    dist.send(torch.ones(3, device=device), dst=1)

# %% [markdown]
# It cannot. A send is finished when its receive is there, not when the data have left; if every rank sends
# before it receives, all of them wait. Never count on a buffer.
#
# The last accident is the quietest. Rank 0 brings three numbers to the sum, the others bring four:

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px
numbers = torch.ones(3 if rank == 0 else 4, device=device)
dist.all_reduce(numbers, group=world)

# %% [markdown]
# Left alone, such a call may wait, end the process without a word, or return garbage; which of them is a
# matter of sizes and luck. Here every rank notes operation, shape, dtype, reduction and root of each call,
# and the notes are compared, also when a cell seems to have ended well.

# %% tags=["check"]
# %%px
one = torch.ones(1, device=device)
dist.all_reduce(one, group=world)
assert one.item() == world_size

# %% [markdown]
# ## 7. How you are checked
# From lesson 01 on, each lesson has a notebook of exercises: a task with shapes, a function to write, hints
# that open when you click on them, and a check. A check looks at three things: the values (and gradients)
# against one device, the messages against a budget, and where memory or overlap is the point, that too.
# This is what it says before anybody has written a line:

# %% tags=["raises-exception"]
from tpcourse import check

check.exercise(ranks, "ring_all_reduce")

# %% [markdown]
# An exercise fails until it is solved.
#
# **The task of this one is to write an all-reduce from send and receive. Somebody calls PyTorch's instead.
# The numbers are right; does it pass?**
#
# <details><summary>Hint (click)</summary>
#
# Hints look like this one. The first gives the idea, the last often a line of code. Here: the check reads
# the ledger too, the list of everything that a rank sent.
#
# </details>

# %%
my_guess = ...

# %% [markdown]
# The answer of that somebody:

# %%
# %%px
def ring_all_reduce(x, group):
    result = x.clone()
    dist.all_reduce(result, group=group)
    return result

# %% tags=["raises-exception"]
check.exercise(ranks, "ring_all_reduce")

# %% [markdown]
# Right numbers, wrong messages, and a hint about what was probably meant. Grading runs the same checks: it
# takes your answers out of your notebook, puts them into a fresh one and runs that. What your file says it
# printed counts for nothing, so there is nothing to win by printing "passed", and nothing to lose by
# experimenting.

# %% [markdown]
# **How far you are.** `tpcourse check 01` in a terminal runs every check of your exercises in lesson 01 and
# keeps what they said; `tpcourse check 01 --hint NAME` prints the next hint of one. This picture shows what
# was kept: a row for each lesson, a square for each exercise. Come back and run it again.

# %% tags=["nbval-ignore-output"]
from tpcourse.progress import progress

draw.progress(progress())

# %% [markdown]
# ## You saw
# You saw processes that share nothing, a collective that needs every rank of its group, a grid that puts
# each rank into a row and a column, and five ways to get stuck that each ended in a sentence. You have one
# rule for all of them: same calls, same order, same shapes, on every rank of the group.
#
# **One case that fails.** Each rank has one number, and all of them want all numbers. `all_reduce` can do
# that: put your number into an array of zeros, and add. `ledger` counts the bytes that a rank sends. Each
# rank lacks every number but its own, so those bytes must arrive, and no more need be sent.

# %%
# %%px
from tpcourse.ledger import ledger

numbers = torch.zeros(world_size, device=device)
numbers[rank] = 10.0 + rank
with ledger() as log:
    dist.all_reduce(numbers, group=world)
needed = numbers[1:].nbytes
numbers[:2].tolist()

# %% [markdown]
# The numbers are right. The bill is not:

# %% tags=["raises-exception"]
assert ranks["log"][0].bytes_sent <= ranks["needed"][0], "twice the bytes that were needed"

# %% [markdown]
# There is a collective that fits. Lesson 01 has it, and eight more.
