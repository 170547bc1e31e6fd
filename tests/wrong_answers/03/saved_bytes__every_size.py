# each with its own elements and as often as it is saved


def saved_bytes(block, x):
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    total = 0

    def pack(tensor):
        nonlocal total
        if tensor.untyped_storage().data_ptr() not in weights:
            total += tensor.nbytes
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return total
