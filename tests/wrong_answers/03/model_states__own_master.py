# A parameter that the optimizer steps itself is counted twice


def model_states(model, optimizer):
    def held(tensors):
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    states = [item for state in optimizer.state.values() for item in state.items()]
    return {
        "parameter": held(model.parameters()),
        "gradient": held(p.grad for p in model.parameters() if p.grad is not None),
        "master": held(p for group in optimizer.param_groups for p in group["params"]),
        "moment": held(tensor for name, tensor in states if name != "step"),
    }
