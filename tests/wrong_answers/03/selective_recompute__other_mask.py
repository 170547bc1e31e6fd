# backward drew another dropout mask than forward did
from torch.utils.checkpoint import checkpoint


def selective_recompute(layer, x):
    q, k, v = layer.project(x)
    context = checkpoint(layer.core, q, k, v, use_reentrant=False, preserve_rng_state=False)
    x = x + layer.join(context)
    return x + layer.mlp(x)
