# Manual pages go into dist_man7_MANS, other documents into dist_doc_DATA (installed) or EXTRA_DIST (not installed).
dist_doc_DATA  += README.md doc/abi.md doc/bindings.md doc/communicators.md doc/cuda.md doc/data.md doc/datasets.md \
    doc/design.md doc/faults.md doc/memory.md doc/mixed-precision.md doc/parallel.md doc/parallel-pieces.md doc/auto.md \
    doc/data-parallel.md doc/distributed.md doc/layouts.md doc/losses.md doc/pipeline.md doc/plugin-contract.md \
    doc/sharded.md \
    doc/writing-a-strategy.md doc/sharing.md doc/sim.md doc/streams.md doc/block-layouts.svg doc/comm-growth.svg doc/layers.svg
guidedir        = $(docdir)/plugin-guide
dist_guide_DATA = doc/plugin-guide/README.md doc/plugin-guide/backend.md doc/plugin-guide/backend-async.md \
    doc/plugin-guide/comm.md doc/plugin-guide/image.md doc/plugin-guide/kernels.md doc/plugin-guide/memory.md \
    doc/plugin-guide/strategy.md
dist_man1_MANS  = doc/ctrt.1
dist_man7_MANS += doc/ctrt.7
man7_MANS       = doc/ctrt-ops.7 doc/ctrt-kernels.7
CLEANFILES     += doc/ctrt-ops.7 doc/ctrt-kernels.7
EXTRA_DIST     += doc/ops.awk doc/kernels.awk doc/layers.py

doc/ctrt-ops.7: doc/ops.awk include/ctrt/ops.def
	$(AM_V_GEN)$(MKDIR_P) doc && $(AWK) -f $(srcdir)/doc/ops.awk $(srcdir)/include/ctrt/ops.def >$@.new && mv $@.new $@

doc/ctrt-kernels.7: doc/kernels.awk include/ctrt/ops.def include/ctrt/contracts.def
	$(AM_V_GEN)$(MKDIR_P) doc && $(AWK) -f $(srcdir)/doc/kernels.awk $(srcdir)/include/ctrt/ops.def \
	    $(srcdir)/include/ctrt/contracts.def >$@.new && mv $@.new $@

# The reference of the API from the headers' comments; needs doxygen.
doc: doc/Doxyfile
	@command -v doxygen >/dev/null 2>&1 || { echo 'make doc needs doxygen (Debian: apt-get install doxygen)' >&2; exit 1; }
	$(MKDIR_P) doc/api && $(AWK) -v form=header -f $(srcdir)/doc/ops.awk $(srcdir)/include/ctrt/ops.def >doc/api/elementwise.h
	doxygen doc/Doxyfile && test -s doc/api/html/tensor_8h.html && echo 'see doc/api/html/index.html'
.PHONY: doc

