# holds the graph that holds it


def saved_bytes(block, x):
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    sizes = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    del y
    return sum(size for pointer, size in sizes.items() if pointer not in weights)
