# x is left out


def saved_bytes(block, x):
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *block.parameters())}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    del y
    return sum(sizes.values())
