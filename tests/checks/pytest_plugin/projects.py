"""Projects of other people, as text."""

ENGINE = '''
    """An engine of somebody else's."""

    import torch


    def waits():
        return torch.ones(1, device="cuda").sum().item()


    def races():
        host = torch.ones(8, pin_memory=True)
        device = torch.empty(8, device="cuda")
        device.copy_(host, non_blocking=True)
        host[0] = 2
        return device


    def right():
        return torch.ones(8, device="cuda") + 1


    def is_finished():
        return bool(right().sum() > 8)
'''


def hot(*names):
    """Settings that name hot paths of the engine."""
    return f"hot_paths = {[f'engine:{name}' for name in names]}\n"


def allow(site, code, reason="a test"):
    return f"[[tool.mrv2.allow]]\nsite = 'engine:{site}'\ncode = '{code}'\nreason = '{reason}'\n"
