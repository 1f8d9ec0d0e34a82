# Bindings to other languages: doc/bindings.md.

# C++: one header, <prefix>/include/ctrt.hpp.
include_HEADERS += bindings/cpp/ctrt.hpp
EXTRA_DIST      += bindings/cpp/examples/digits.cc

# Python: `make wheel` writes python/ctrt-VERSION-TAG.whl. It needs python3 with cffi.
EXTRA_DIST += \
    bindings/python/README.md bindings/python/build_wheel.py bindings/python/examples/digits.py \
    bindings/python/generate.py bindings/python/pyproject.toml \
    bindings/python/ctrt/__init__.py bindings/python/ctrt/_core.py bindings/python/ctrt/autograd.py \
    bindings/python/ctrt/callbacks.py bindings/python/ctrt/dlpack.py bindings/python/ctrt/functional.py \
    bindings/python/ctrt/nn.py bindings/python/ctrt/optim.py bindings/python/ctrt/runtime.py \
    bindings/python/ctrt/tensor.py

wheel: all
	python3 -B $(srcdir)/bindings/python/build_wheel.py --build . --cc '$(CC)' --readelf '$(READELF)' --strip '$(STRIP)'

# Rust: `make rust` writes the crate rust/ctrt-sys, with the declarations. It needs python3 with cffi, but no cargo.
EXTRA_DIST += \
    bindings/rust/generate.py bindings/rust/ctrt-sys/Cargo.toml.in bindings/rust/ctrt-sys/build.rs \
    bindings/rust/ctrt-sys/examples/add.rs bindings/rust/ctrt-sys/examples/train.rs bindings/rust/ctrt-sys/src/lib.rs

rust:
	python3 -B $(srcdir)/bindings/rust/generate.py '$(CC)' $(srcdir)/include $(PACKAGE_VERSION) rust/ctrt-sys
.PHONY: rust wheel
