# These are the outputs of the modules


def saved_bytes(block, x):
    sizes = []
    leaves = [part for part in block.modules() if not list(part.children())]
    handles = [part.register_forward_hook(lambda _, __, y: sizes.append(y.nbytes)) for part in leaves]
    block(x)
    for handle in handles:
        handle.remove()
    return sum(sizes)
