# something outlives the call and holds it


def saved_bytes(block, x):
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    block.kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            block.kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in block.kept.values())
