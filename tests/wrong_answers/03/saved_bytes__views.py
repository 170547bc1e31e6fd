# A view is counted with its own elements


def saved_bytes(block, x):
    weights = {p.data_ptr() for p in block.parameters()}
    sizes = {}

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    del y
    return sum(sizes.values())
