# Master copies of the first group only


def model_states(model, optimizer):
    def held(tensors):
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    own = set(model.parameters())
    states = [item for state in optimizer.state.values() for item in state.items()]
    return {
        "parameter": held(own),
        "gradient": held(p.grad for p in own if p.grad is not None),
        "master": held(p for p in optimizer.param_groups[0]["params"] if p not in own),
        "moment": held(tensor for name, tensor in states if name != "step"),
    }
