# a hook sends what has just arrived


def overlapped_gradients(model, x, y, bucket_bytes, group):
    p, handles, order, arrived = dist.get_world_size(group), [], list(model.parameters())[::-1], set()

    def ready(w):
        arrived.add(w)
        while len(handles) < len(order) and order[len(handles)] in arrived:
            grad = order[len(handles)].grad
            grad /= p
            handles.append(dist.all_reduce(grad, group=group, async_op=True))

    hooks = [w.register_post_accumulate_grad_hook(ready) for w in model.parameters()]
    ((model(x) - y) ** 2).mean().backward()
    for hook in hooks:
        hook.remove()
    for handle in handles:
        handle.wait()
    return [w.grad for w in model.parameters()]
