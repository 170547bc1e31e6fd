"""Answers to column_product that send more than the budget allows, and hide it: what a clever student might try.

Each is the text of a cell; what it defines last is `column_product`, with the right values.
"""

from __future__ import annotations

from tests.grade_cases import solution

BODY = solution("column_product").removeprefix("%%px\n")
RETURN = "return dx, None"


def sending(code: str) -> str:
    """The right answer, which also does this with dx and ctx.tp once backward has its sum."""
    return BODY.replace(RETURN, code.strip().replace("\n", "\n        ") + f"\n        {RETURN}")


MORE = "dist.all_reduce(dx.clone(), group=ctx.tp)\n"
OVER = sending(MORE)
LEDGER = """
import contextlib
side = __import__("tpcourse." + "check.rank_side", fromlist=["ledger"])
official = side.ledger
@contextlib.contextmanager
def ledger():
    with official() as log:
        yield log
    del log._events[1:]
side.ledger = ledger
"""
HIDDEN = "    if hasattr(value, 'log'):\n        del value.log._events[1:]\n"
LIAR = f"""
import tpcourse.engine.rank as engine
usual = engine.Rank.run_call
def run_call(self, function, *args):
    engine.Rank.run_call = usual
    value = usual(self, function, *args)
    engine.Rank.run_call = run_call
{HIDDEN}    return value
engine.Rank.run_call = run_call
"""
OWN_LIAR = f"""
from IPython import get_ipython
own = get_ipython().tpcourse_rank
usual = own.run_call
def run_call(function, *args):
    del own.run_call
    value = usual(function, *args)
    own.run_call = run_call
{HIDDEN}    return value
own.run_call = run_call
"""
IMPORTER = """
import importlib, types
official = importlib.import_module
def attempt(*args):
    outcome = official("tpcourse.check.rank_side").attempt(*args)
    if outcome is not None:
        del outcome.log._events[1:]
    return outcome
class Side(types.ModuleType):
    def __getattr__(self, name):
        return attempt if name == "attempt" else getattr(official("tpcourse.check.rank_side"), name)
def import_module(name, *more):
    return Side(name) if name == "tpcourse.check.rank_side" else official(name, *more)
importlib.import_module = import_module
"""
PROBE = """
side = "tpcourse." + "check.lesson05.in_rank"
probe = __import__(side, fromlist=["call"])
official = probe.call
def call(function, given, groups, outcome):
    result = official(function, given, groups, outcome)
    del outcome.log._events[1:]
    return result
probe.call = call
"""
STATE = """
evidence = __import__("tpcourse." + "check.evidence", fromlist=["Outcome"])
def state(self):
    del self.log._events[1:]
    return self.__dict__
evidence.Outcome.__getstate__ = state
"""
KIND = """
side = __import__("tpcourse." + "check.rank_side", fromlist=["Outcome"])
official = side.Outcome
class Outcome(official):
    def __reduce__(self):
        del self.log._events[1:]
        return object.__new__, (official,), self.__dict__
side.Outcome = Outcome
"""
RECORDER = """
from tpcourse import ledger
recorder, calls = ledger._installed[0], []
official = recorder.begin
def begin(*args):
    calls.append(1)
    return official(*args) if len(calls) % 2 else None
recorder.begin = begin
"""
TRACER = """
import sys
def tracer(frame, event, arg):
    while frame and frame.f_code.co_name in ("to_arrays", "record"):
        log = frame.f_locals.get("log")
        if hasattr(log, "_events"):
            del log._events[1:]
        frame = frame.f_back
sys.settrace(tracer)
"""
CLEAR = """
import gc
for one in gc.get_objects():
    if type(one).__name__ == "Log":
        del one._events[1:]
"""
SHRINK = """
both = torch.cat([dx, dx])
dist.all_reduce(both, group=ctx.tp)
dx = both[: len(dx)]
import gc
for one in gc.get_objects():
    if type(one).__name__ == "Event" and getattr(one, "numel", 0) == both.numel():
        one.numel, one.bytes_sent, one.shape = one.numel // 2, one.bytes_sent // 2, tuple(dx.shape)
"""

PATCHED = {
    "the ledger of the check": LEDGER,
    "a call of the engine that lies when it is looked at": LIAR,
    "the same in the rank's own dict": OWN_LIAR,
    "what imports the check": IMPORTER,
    "the probe of this exercise": PROBE,
    "how an outcome is pickled": STATE,
    "what an outcome is": KIND,
    "the recorder's method, in its own dict": RECORDER,
    "a tracer": TRACER,
}
"""Defined in front of the wasteful answer."""
OWN_GROUPS = "own = {p: dist.new_group(list(range(4 - p, 4))) for p in (2, 3, 4)}\n"
DESTROYED = """
group = own.pop(dist.get_world_size(ctx.tp))
group._get_backend(dx.device).allreduce([dx.clone()]).wait()
dist.destroy_process_group(group)
"""
BY_HAND = """
members = dist.get_process_group_ranks(ctx.tp)
store = dist.distributed_c10d._get_default_store()
store = dist.PrefixStore(f"{members} {store.add(f'{members} {rank}', 1)}", store)
own = dist.ProcessGroupGloo(store, members.index(rank), len(members))
own.allreduce([dx.clone()]).wait()
"""
BEHIND = {
    "the ledger's list is emptied": sending(MORE + CLEAR),
    "a backend is called behind the ledger": sending("ctx.tp._get_backend(dx.device).allreduce([dx.clone()]).wait()"),
    "a group is made and destroyed": OWN_GROUPS + sending(DESTROYED),
    "a group of one's own, made by hand": sending(BY_HAND),
    "a call is written down smaller than it was": BODY.replace(
        "dist.all_reduce(dx, group=ctx.tp)", SHRINK.strip().replace("\n", "\n        ")
    ),
}
"""Calls that the ledger does not have, or has otherwise."""
