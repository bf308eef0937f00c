#!/usr/bin/env python3
# License: Boost Software License   See LICENSE.txt for the full license.

"""How fast PyTorch and Liger normalize rows of floats on a GPU, as tools/rms_norm_gpu_benchmark.cu
measures the kernels here: the share of the bandwidth of copying memory on the same device. Leaves
out what is not installed."""

import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("rms_norm_gpu_peers: there is no PyTorch")


def microseconds(work):
    """The median time of one call, of 9 runs of 10 calls each."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(9):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            work()
        end.record()
        end.synchronize()
        times.append(100 * begin.elapsed_time(end))
    return statistics.median(times)


def norms(size):
    """Pairs of a name and a function of (x, weight)."""
    eps = 1e-5
    if hasattr(torch.nn.functional, "rms_norm"):
        def by_torch(x, weight):
            return torch.nn.functional.rms_norm(x, (size,), weight, eps)

        yield "PyTorch", by_torch
        yield "compiled", torch.compile(by_torch, dynamic=False)
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    except ImportError:
        return
    # offset, casting mode, in place: not, as a gradient that autograd keeps must not change
    yield "Liger", lambda x, weight: LigerRMSNormFunction.apply(
        x, weight, eps, 0.0, "none", False)


def main():
    if not torch.cuda.is_available():
        sys.exit("rms_norm_gpu_peers: PyTorch sees no GPU")
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print("%-9s %9s   %-9s %9s   %9s %7s   %9s %7s" % (
        "", "rows", "of size", "copy", "forward", "share", "backward", "share"))
    values = 2**28
    for size in (1024, 4096, 8192, 16384, 32768):
        x = torch.randn(values // size, size, device=device, requires_grad=True)
        d = torch.randn_like(x)
        weight = torch.randn(size, device=device, requires_grad=True)
        target = torch.empty_like(d)
        copy = microseconds(lambda: target.copy_(d))
        del target
        for name, norm in norms(size):
            try:
                with torch.no_grad():
                    forward = microseconds(lambda: norm(x, weight))
                y = norm(x, weight)
                backward = microseconds(
                    lambda: torch.autograd.grad(y, (x, weight), d, retain_graph=True))
                del y
            except Exception as error:  # a peer that fails is not our failure
                print("%-9s %9d x %-9d %s" % (name, values // size, size, error))
                continue
            # Forward moves two tensors, as the copy does; backward reads two and writes one.
            print("%-9s %9d x %-9d %9.1f   %9.1f %6.1f%%   %9.1f %6.1f%%" % (
                name, values // size, size, copy, forward, 100 * copy / forward,
                backward, 150 * copy / backward), flush=True)


if __name__ == "__main__":
    main()
