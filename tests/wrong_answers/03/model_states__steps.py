# The optimizer's step counts are among the moments


def model_states(model, optimizer):
    def held(tensors):
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    own = set(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "parameter": held(own),
        "gradient": held(p.grad for p in own if p.grad is not None),
        "master": held(p for p in stepped if p not in own),
        "moment": held(tensor for state in optimizer.state.values() for tensor in state.values()),
    }
