# the count itself copies what it counts


def model_states(model, optimizer):
    def held(tensors):
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        sizes = [tensor.untyped_storage().nbytes() for tensor in storages.values()]
        bytes_held = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
        return sum(len(piece) for piece in bytes_held)

    own = set(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    states = [item for state in optimizer.state.values() for item in state.items()]
    return {
        "parameter": held(own),
        "gradient": held(p.grad for p in own if p.grad is not None),
        "master": held(p for p in stepped if p not in own),
        "moment": held(tensor for name, tensor in states if name != "step"),
    }
