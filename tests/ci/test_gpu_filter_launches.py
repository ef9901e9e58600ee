"""What `ci.gpu.filter_launches` makes of a profiler's events; its measurements need a GPU."""

from types import SimpleNamespace

from torch.autograd import DeviceType

from mrv2.ci.gpu.filter_launches import main, time_of_kernels


def event(name, time, device=DeviceType.CUDA):
    return SimpleNamespace(name=name, device_time=time, device_type=device)


def test_launches_of_one_kernel_are_added_up_and_divided_by_the_draws():
    events = [event("narrow_rows", 3.0), event("narrow_rows", 4.0), event("weigh_rows", 5.0), event("narrow_rows", 9.0)]
    events.append(event("aten::empty", 100.0, DeviceType.CPU))
    assert time_of_kernels(events, 2) == {"narrow_rows": 8.0, "weigh_rows": 2.5}


def test_a_wrong_call_says_how_it_is_called(capsys):
    assert main([]) == 2
    assert "python -m mrv2.ci.gpu.filter_launches FILE" in capsys.readouterr().err
