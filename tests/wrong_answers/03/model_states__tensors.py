# Tensors are added up, and memory is made of storages


def model_states(model, optimizer):
    own = set(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "parameter": sum(p.nbytes for p in own),
        "gradient": sum(p.grad.nbytes for p in own if p.grad is not None),
        "master": sum(p.nbytes for p in stepped if p not in own),
        "moment": sum(state[name].nbytes for state in optimizer.state.values() for name in state if name != "step"),
    }
