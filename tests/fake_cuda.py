"""A fake CUDA device for a CPU build of torch: it shows wrong device placement and host synchronisations.

`enable()` changes torch for the whole process, so a test runs it in a process of its own. Tensors of the fake device
say `cuda:N` and hold CPU memory. An operation on a CPU tensor and one of the device raises, as CUDA does; each call for
which the host would wait for the GPU is counted in `SYNCS`, by operation and place. Autocast follows the CPU's list of
operations, which is CUDA's for the products and attention of these decoders. In a backward, zeros that C++ makes may
mix with the device's tensors.

The current device is a host thread's own and is 0 in a new thread, as CUDA has it; a tensor made on another device than
the one that `enable` names raises. An asynchronous copy to pinned memory lies on the stream of its tensor's device: the
host sees NaN until an event that was recorded on *that* stream is waited for, or the host waits for the device anyway.
Not covered: real kernels, memory, speed.
"""

import importlib
import threading
import traceback
from collections import Counter
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
SYNCS: Counter[str] = Counter()
WAITING = frozenset(  # the host reads a result of these, or needs it to know a shape
    {
        aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
        aten.repeat_interleave.Tensor, aten.is_nonzero.default, aten._unique2.default, aten.bincount.default,
        aten.unique_dim.default, aten.unique_consecutive.default, aten.isin.Tensor_Tensor,
    }
)  # fmt: skip
MIXING = frozenset(  # CUDA takes indices and sources of copies from the host
    {
        aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put_.default,
        aten._index_put_impl_.default, aten.set_.source_Tensor, aten.index_put.default,
    }
)  # fmt: skip
INDEXING = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default})
PROJECT = ("/unified_lm/", "/evals/", "/experiments/")
THREAD = threading.local()  # `THREAD.device`: the current device of a host thread
ASKED: Counter[int] = Counter()  # number of copies to pinned memory that each device was ever asked for
PENDING: dict[int, list[tuple[int, Callable[[], None]]]] = {}  # those that it has yet to do, by number
DEVICE = torch.device("cuda", 0)


def current_device() -> int:
    return getattr(THREAD, "device", 0)


def require_place(device: torch.device | str | int | None) -> None:
    """Raises `RuntimeError` where a tensor would be made on another device than the one that is used."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    index = current_device() if index is None else index
    if index != DEVICE.index:
        raise RuntimeError(f"a tensor on cuda:{index}, where {DEVICE} is used: the current device is a thread's own")


def finish_copies(device: int, up_to: float = float("inf")) -> None:
    """Let the pending copies of a device be done, those up to a number."""
    waiting = PENDING.setdefault(device, [])
    while waiting and waiting[0][0] <= up_to:
        waiting.pop(0)[1]()


def record_sync(operation: str) -> None:
    finish_copies(DEVICE.index)
    for frame in reversed(traceback.extract_stack()[:-2]):
        if any(part in frame.filename for part in PROJECT):
            SYNCS[f"{operation} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"] += 1
            return


def is_cuda(device) -> bool:
    return device is not None and (isinstance(device, int) or torch.device(device).type == "cuda")


class CudaTensor(torch.Tensor):
    """A tensor of the fake device; `host` is the memory that it really has."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host):
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            layout=host.layout, device=torch.device("cpu"), requires_grad=False,
        )  # fmt: skip
        made.host = host
        return made

    def __init__(self, host):
        pass

    device = property(lambda self: DEVICE)  # what Python sees; C++ sees the CPU
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"CudaTensor({self.host})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return dispatch(function, args, kwargs or {})


class FakeDevice(TorchDispatchMode):
    """Sends factory calls with `device=cuda` to the fake device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return dispatch(function, args, kwargs or {})


def dispatch(function, args, kwargs):
    leaves = tree_leaves((args, kwargs))
    ours = [x for x in leaves if isinstance(x, CudaTensor)]
    plain = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, CudaTensor)]
    kwargs = dict(kwargs)
    wanted = is_cuda(kwargs.get("device"))
    if wanted:
        require_place(kwargs["device"])
        kwargs["device"] = torch.device("cpu")
    pinned = bool(kwargs.get("pin_memory"))
    if pinned:
        kwargs["pin_memory"] = False
    if not ours and not wanted:
        out = function(*args, **kwargs)
        if pinned:
            out.pinned = True
        return out
    in_backward = torch._C._current_graph_task_id() != -1
    if ours and function not in MIXING and not in_backward and any(x.dim() for x in plain):
        shapes = [tuple(x.shape) for x in plain if x.dim()]
        raise RuntimeError(f"Expected all tensors to be on one device, found {DEVICE} and cpu {shapes} in {function}")
    count_syncs(function, args, kwargs, ours, plain, wanted)
    to_host = function is aten.copy_.default and not isinstance(args[0], CudaTensor)
    known = {id(x.host): x for x in ours}
    args, kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs)

    def wrap(x):
        if not isinstance(x, torch.Tensor) or isinstance(x, CudaTensor) or to_host:
            return x
        return known.get(id(x)) if id(x) in known else CudaTensor(x)

    return tree_map(wrap, function(*args, **kwargs))


def unwrap(x):
    return x.host if isinstance(x, CudaTensor) else x


def count_syncs(function, args, kwargs, ours, plain, wanted) -> None:
    if function in WAITING and ours:
        record_sync(str(function).removeprefix("aten."))
    if function in INDEXING:
        indices = [x for x in args[1] if isinstance(x, torch.Tensor)]
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices if isinstance(x, CudaTensor)):
            record_sync("index by a mask")
        if ours and any(x.dim() and not isinstance(x, CudaTensor) for x in indices):
            record_sync("index from the host")
    to_host = function is aten.copy_.default and ours and not isinstance(args[0], CudaTensor)
    if to_host and not ((len(args) > 2 and args[2]) or kwargs.get("non_blocking")):
        record_sync("copy to the host")
    if function is aten._to_copy.default and wanted and plain and not kwargs.get("non_blocking"):
        record_sync("copy to the device")


class Upload(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return CudaTensor(x.detach())

    @staticmethod
    def backward(ctx, gradient):
        return unwrap(gradient)


class Download(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.host.detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        return CudaTensor(gradient)


def move(x, device, non_blocking=False):
    if is_cuda(device) and not isinstance(x, CudaTensor):
        require_place(device)
        if not non_blocking:
            record_sync("copy to the device")
        return Upload.apply(x)
    if device is not None and not is_cuda(device) and isinstance(x, CudaTensor):
        if not non_blocking:
            record_sync("copy to the host")
        return Download.apply(x)
    return x


def enable(device: int = 0) -> None:
    """Make this process believe in H100s, of which it uses number `device`. There is no way back."""
    global DEVICE
    DEVICE = torch.device("cuda", device)
    for module in ("torch._dynamo", "torch.amp.autocast_mode", "torch.nn.attention.varlen"):
        importlib.import_module(module)  # before anything is replaced
    replace_tensor_methods()
    replace_cuda_module()
    replace_attention()
    torch.amp.autocast_mode.amp_definitely_not_available = lambda: False
    torch.amp.autocast_mode.torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    run = threading.Thread.run

    def run_on_device(self):
        with FakeDevice():
            run(self)

    threading.Thread.run = run_on_device
    FakeDevice().__enter__()


def replace_tensor_methods() -> None:
    tensor, module = torch.Tensor, torch.nn.Module
    real_to, real_cpu, real_list, real_numpy, real_copy = (
        tensor.to, tensor.cpu, tensor.tolist, tensor.numpy, tensor.copy_,
    )  # fmt: skip
    real_tensor, real_as_tensor, real_module_to = torch.tensor, torch.as_tensor, module.to
    real_autocast = torch.autocast.__init__

    def to(self, *args, **kwargs):
        if args and isinstance(args[0], torch.Tensor):
            device, dtype, non_blocking = args[0].device, args[0].dtype, kwargs.get("non_blocking", False)
        else:
            known = {key: value for key, value in kwargs.items() if key != "copy"}
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **known)
        out = move(self, device, non_blocking)
        return out if dtype is None or out.dtype == dtype else real_to(out, dtype)

    def pin_memory(self, *args):
        self.pinned = True
        return self

    def tolist(self):
        if isinstance(self, CudaTensor):
            record_sync("tolist")
        return real_list(unwrap(self))

    def numpy(self, *args, **kwargs):
        if isinstance(self, CudaTensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return real_numpy(self, *args, **kwargs)

    def copy_(self, source, non_blocking=False):
        if isinstance(source, CudaTensor) and not isinstance(self, CudaTensor):
            if non_blocking and getattr(self, "pinned", False):
                value = source.host.clone()
                self.fill_(float("nan") if self.is_floating_point() else -(2**31))
                ASKED[DEVICE.index] += 1
                waiting = PENDING.setdefault(DEVICE.index, [])
                waiting.append((ASKED[DEVICE.index], lambda: real_copy(self, value)))
                return self
            record_sync("copy to the host")
            return real_copy(self, source.host)
        if isinstance(self, CudaTensor) and not isinstance(source, CudaTensor):
            real_copy(self.host, source)
            return self
        return real_copy(self, source, non_blocking)

    def make_tensor(data, *, device=None, **kwargs):
        if not is_cuda(device):
            return real_tensor(data, **kwargs)
        require_place(device)
        record_sync("torch.tensor on the device")
        return CudaTensor(real_tensor(data, **kwargs))

    def as_tensor(data, dtype=None, device=None):
        out = data if isinstance(data, torch.Tensor) else real_as_tensor(data, dtype=dtype)
        return out if device is None and dtype is None else out.to(device=device, dtype=dtype)

    def module_to(self, *args, **kwargs):
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None:
            real_module_to(self, dtype)
        if not is_cuda(device):
            return self
        moved = {}
        for part in self.modules():
            for name, value in part._parameters.items():
                if value is not None and not isinstance(value, CudaTensor):
                    made = torch.nn.Parameter(CudaTensor(value.detach()), requires_grad=value.requires_grad)
                    part._parameters[name] = moved.setdefault(id(value), (made, value))[0]
            for name, value in part._buffers.items():
                if value is not None and not isinstance(value, CudaTensor):
                    part._buffers[name] = CudaTensor(value.detach())
        return self

    def autocast(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        kind = "cpu" if device_type == "cuda" else device_type
        real_autocast(self, kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    tensor.to, tensor.tolist, tensor.numpy, tensor.copy_ = to, tolist, numpy, copy_
    tensor.cpu = lambda self, *a, **k: move(self, "cpu") if isinstance(self, CudaTensor) else real_cpu(self, *a, **k)
    tensor.cuda = lambda self, *a, **k: move(self, "cuda", k.get("non_blocking", False))
    tensor.pin_memory = pin_memory
    torch.tensor, torch.as_tensor, torch.autocast.__init__ = make_tensor, as_tensor, autocast
    module.to, module.cuda = module_to, lambda self, *a: self.to("cuda")
    enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype
    torch.is_autocast_enabled = lambda kind="cpu": enabled("cpu" if kind == "cuda" else kind)
    torch.get_autocast_dtype = lambda kind: dtype_of("cpu" if kind == "cuda" else kind)


def replace_cuda_module() -> None:
    cuda, generator = torch.cuda, torch.Generator
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count, cuda.current_device = lambda: DEVICE.index + 1, current_device
    cuda.set_device = lambda device: setattr(THREAD, "device", torch.device("cuda", device).index)
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_name = lambda device=None: "NVIDIA H100 80GB HBM3"
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.mem_get_info = lambda device=None: (80 * 2**30, 80 * 2**30)
    cuda.max_memory_allocated = cuda.memory_allocated = lambda device=None: 0
    for quiet in ("empty_cache", "reset_peak_memory_stats", "init", "_lazy_init", "manual_seed_all"):
        setattr(cuda, quiet, lambda *args, **kwargs: None)
    cuda.synchronize = lambda device=None: record_sync("torch.cuda.synchronize")
    cuda.Event, cuda.current_stream, cuda.device = Event, Stream, SwitchDevice

    class Generators(type):
        def __call__(cls, device="cpu"):
            return generator("cpu")

        def __instancecheck__(cls, value):
            return isinstance(value, generator)

    torch.Generator = Generators("Generator", (), {})


class Stream:
    """The one stream of a device: the current thread's device, where none is given."""

    def __init__(self, device=None):
        index = None if device is None else device if isinstance(device, int) else torch.device(device).index
        self.device_index = current_device() if index is None else index


class Event:
    """A mark on a stream. Waiting for it lets the copies that were asked for before it on that stream be done."""

    def __init__(self, *args, **kwargs):
        self.stream, self.before = Stream(), 0

    def record(self, stream=None):
        self.stream = stream or Stream()
        self.before = ASKED[self.stream.device_index]

    def synchronize(self):
        finish_copies(self.stream.device_index, self.before)

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1.0


class SwitchDevice:
    """`torch.cuda.device(...)`: the current device of this thread inside the block."""

    def __init__(self, device):
        self.device = Stream(device).device_index

    def __enter__(self):
        self.before, THREAD.device = current_device(), self.device
        return self

    def __exit__(self, *error):
        THREAD.device = self.before
        return False


def replace_attention() -> None:
    import torch.nn.functional as functional

    real = functional.scaled_dot_product_attention

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if not isinstance(query, CudaTensor):
            return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
        assert query.dtype == key.dtype == value.dtype, f"sdpa: {query.dtype}, {key.dtype}, {value.dtype}"
        with torch.autocast("cpu", enabled=False):
            if enable_gqa:
                key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
            scores = (
                query.float() @ key.float().transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
            )
            if is_causal:
                seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
                scores = scores.masked_fill(~seen, float("-inf"))
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, float("-inf"))
            elif attn_mask is not None:
                scores = scores + attn_mask
            weights = torch.dropout(scores.softmax(-1), dropout_p, dropout_p > 0)
            return (weights @ value.float()).to(query.dtype)

    functional.scaled_dot_product_attention = attend
