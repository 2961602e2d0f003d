"""Writes the files of this directory: pip install numpy safetensors; python make.py"""
import numpy
from safetensors.numpy import save_file

arrays = {
    "w1": numpy.arange(12, dtype="<f4").reshape(3, 4) / 8,
    "b1": numpy.array([0.5, -1.0], dtype="<f8"),
    "half": numpy.array([1.5, 2.5], dtype="<f2"),
    "steps": numpy.array(7, dtype="<i8"),
    "used": numpy.array([True, False]),
}
numpy.savez("stored.npz", **arrays)
numpy.savez_compressed("deflated.npz", **arrays)
numpy.savez("objects.npz", w1=numpy.array([{}], dtype=object))
numpy.savez("fortran.npz", w1=numpy.asfortranarray(arrays["w1"]))
save_file(arrays, "weights.safetensors", metadata={"epoch": "3"})
