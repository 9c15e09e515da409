"""trireme from Python: models and training runs, through libtrireme, with NumPy arrays.

    import trireme
    model = trireme.Model("checkpoints")
    model.names                               # the names of its weights
    model["decoder.layers.0.mlp.linear_fc1.weight"]          # a NumPy array in fp32
    model.generate("Once upon a time", max_new_tokens=20)

    with trireme.Run(data_path="corpus", num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=64,
                     micro_batch_size=1, train_iters=10, lr=1e-3, ranks=2) as run:
        losses = [step.loss for step in run]

Options are those of `trireme train` and `trireme generate`, with '_' for '-': True is a flag, False its `--no-` form, a
list several values.
"""
import collections
import ctypes
import os
import pathlib

import numpy

__all__ = ["Error", "Model", "Run", "Step", "program", "version"]

Step = collections.namedtuple(
    "Step", "iteration train_iters consumed_samples loss grad_norm learning_rate seconds skipped over")


class Error(RuntimeError):
    """A call that failed; `status` is the exit status that the program would end with."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("rows", ctypes.c_int64), ("cols", ctypes.c_int64)]


class _Step(ctypes.Structure):
    _fields_ = [("iteration", ctypes.c_int64), ("train_iters", ctypes.c_int64), ("consumed_samples", ctypes.c_int64),
                ("loss", ctypes.c_double), ("grad_norm", ctypes.c_double), ("learning_rate", ctypes.c_double),
                ("seconds", ctypes.c_double), ("skipped", ctypes.c_int32), ("over", ctypes.c_int32)]

    def named(self):
        values = {name: getattr(self, name) for name, _ in self._fields_}
        return Step(**{**values, "skipped": bool(self.skipped), "over": bool(self.over)})


def _folder():
    return pathlib.Path(__file__).resolve().parent


def program():
    """The path of the program `trireme` that came with this package, or its name where it is installed elsewhere."""
    own = _folder() / "bin" / "trireme"
    return str(own) if own.exists() else "trireme"


def _load():
    own = _folder() / "lib" / "libtrireme.so.0"
    path = os.environ.get("TRIREME_LIBRARY") or (str(own) if own.exists() else "libtrireme.so.0")
    # Modules of devices call functions of the library.
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    handle, words, text = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p
    place = [ctypes.c_char_p] + 4 * [ctypes.c_int64] + [ctypes.POINTER(ctypes.c_float)]
    declared = {
        "version": (text, []),
        "message": (text, []),
        "free": (None, [handle]),
        "model_open": (ctypes.c_int, [ctypes.POINTER(handle), text]),
        "model_close": (None, [handle]),
        "model_tensors": (ctypes.c_int, [handle]),
        "model_tensor": (_Tensor, [handle, ctypes.c_int]),
        "model_read": (ctypes.c_int, [handle] + place),
        "model_generate": (ctypes.c_int, [handle, text, words, ctypes.c_int, ctypes.POINTER(handle)]),
        "run_open": (ctypes.c_int, [ctypes.POINTER(handle), words, ctypes.c_int]),
        "run_step": (ctypes.c_int, [handle, ctypes.POINTER(_Step)]),
        "run_last": (_Step, [handle]),
        "run_evaluate": (ctypes.c_int, [handle, ctypes.POINTER(ctypes.c_double)]),
        "run_save": (ctypes.c_int, [handle]),
        "run_tensors": (ctypes.c_int, [handle]),
        "run_tensor": (_Tensor, [handle, ctypes.c_int]),
        "run_read": (ctypes.c_int, [handle] + place),
        "run_write": (ctypes.c_int, [handle] + place),
        "run_close": (ctypes.c_int, [handle]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, "trireme_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def version():
    """The name and version of the library."""
    return _library.trireme_version().decode()


def _check(status):
    if status:
        raise Error(status, _library.trireme_message().decode(errors="replace"))


def _words(options):
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return (ctypes.c_char_p * len(words))(*(word.encode() for word in words)), len(words)


class _Weights:
    """Weights by name: `object[name]` is a whole tensor, `object.read(name, rows, cols)` a part."""

    _kind = ""

    def __init__(self):
        self._handle = ctypes.c_void_p()
        self._shapes = {}

    def _call(self, name):
        if not self._handle:
            raise ValueError(f"the {self._kind} is closed")
        return getattr(_library, f"trireme_{self._kind}_{name}")

    def _list(self):
        for i in range(self._call("tensors")(self._handle)):
            tensor = self._call("tensor")(self._handle, i)
            self._shapes[tensor.name.decode()] = (tensor.rows, tensor.cols)

    @property
    def names(self):
        """The names of all weights, in the model's order."""
        return list(self._shapes)

    def shape(self, name):
        """Rows and columns of a weight; a vector is one row."""
        return self._shapes[name]

    def _place(self, name, rows, cols):
        height, width = self._shapes.get(name, (1, 1))
        rows, cols = rows or slice(None), cols or slice(None)
        (top, bottom, step), (left, right, other) = rows.indices(height), cols.indices(width)
        if (step, other) != (1, 1):
            raise ValueError("rows and columns are read without steps")
        return name.encode(), top, left, bottom - top, right - left

    def read(self, name, rows=None, cols=None):
        """A part of a weight as a NumPy array in fp32; rows and cols are slices, None is all of them."""
        place = self._place(name, rows, cols)
        out = numpy.empty((max(place[3], 0), max(place[4], 0)), numpy.float32)
        _check(self._call("read")(self._handle, *place, out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))))
        return out

    def __getitem__(self, name):
        if name not in self._shapes:
            raise KeyError(name)
        return self.read(name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()


class Model(_Weights):
    """A model: a checkpoint, a Hugging Face folder or ORG/NAME in its cache, a GGUF file, an adapter with its base."""

    _kind = "model"

    def __init__(self, path):
        super().__init__()
        _check(_library.trireme_model_open(ctypes.byref(self._handle), os.fsencode(path)))
        self._list()

    def generate(self, prompt, **options):
        """Continues a text. Options are those of `trireme generate`, such as max_new_tokens=20, temperature=0.8."""
        words, count = _words(options)
        text = ctypes.c_void_p()
        _check(self._call("generate")(self._handle, prompt.encode(), words, count, ctypes.byref(text)))
        try:
            return ctypes.string_at(text.value).decode()
        finally:
            _library.trireme_free(text)

    def close(self):
        if self._handle:
            _library.trireme_model_close(self._handle)
            self._handle = ctypes.c_void_p()


class Run(_Weights):
    """A training run, step by step: an iterator of its steps. Options are those of `trireme train`."""

    _kind = "run"

    def __init__(self, **options):
        super().__init__()
        words, count = _words(options)
        _check(_library.trireme_run_open(ctypes.byref(self._handle), words, count))
        self._list()

    @property
    def last(self):
        """The last step; before the first one how far the run is."""
        return self._call("last")(self._handle).named()

    def step(self):
        """Takes a step."""
        step = _Step()
        _check(self._call("step")(self._handle, ctypes.byref(step)))
        return step.named()

    def __iter__(self):
        while not self.last.over:
            yield self.step()

    def evaluate(self):
        """The loss on eval_iters batches of the held-out share."""
        loss = ctypes.c_double()
        _check(self._call("evaluate")(self._handle, ctypes.byref(loss)))
        return loss.value

    def save(self):
        """Saves a checkpoint to the folder of the option `save`."""
        _check(self._call("save")(self._handle))

    def write(self, name, values, rows=None, cols=None):
        """Replaces a weight, or a part of it, by the numbers of an array."""
        place = self._place(name, rows, cols)
        values = numpy.ascontiguousarray(numpy.broadcast_to(values, place[3:]), numpy.float32)
        _check(self._call("write")(self._handle, *place, values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))))

    def __setitem__(self, name, values):
        if name not in self._shapes:
            raise KeyError(name)
        self.write(name, values)

    def close(self):
        """Ends the run; it saves where it has the option `save`."""
        if self._handle:
            handle, self._handle = self._handle, ctypes.c_void_p()
            _check(_library.trireme_run_close(handle))
