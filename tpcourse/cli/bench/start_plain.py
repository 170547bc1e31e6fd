"""One sample of `tpcourse bench start`: plain ipyparallel, torch imported and gloo joined in the engines."""

import json
import tempfile
import time


def join(rank: int, store: str) -> float:
    """Join a gloo group and all-reduce a one, in the engine."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def sample() -> float:
    """Seconds from `Cluster(n=4)` to the first all-reduce finished on every engine."""
    import ipyparallel

    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        cluster = ipyparallel.Cluster(n=4, profile_dir=f"{folder}/profile", log_level=40)
        client = cluster.start_and_connect_sync()
        calls = [client[rank].apply_async(join, rank, f"{folder}/store") for rank in range(4)]
        results = [call.get(timeout=60) for call in calls]
        seconds = time.perf_counter() - begin_s
        client.close()
        cluster.stop_cluster_sync()
    assert results == [4.0] * 4, results
    return seconds


if __name__ == "__main__":
    print(json.dumps({"first_s": sample()}))
