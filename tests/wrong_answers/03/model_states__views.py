# A storage is counted once for each tensor that looks at it


def model_states(model, optimizer):
    def held(tensors):
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    own = set(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "parameter": held(own),
        "gradient": held(p.grad for p in own if p.grad is not None),
        "master": held(p for p in stepped if p not in own),
        "moment": held(state[name] for state in optimizer.state.values() for name in state if name != "step"),
    }
