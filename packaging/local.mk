# Files for distributions, and the tests of packages; doc/releasing.md describes them. debian/ is not in the release
# archive: a source package adds it.
EXTRA_DIST += packaging/apt-repo packaging/bare-system.sh packaging/check-release packaging/ctrt.spec \
              packaging/debian-build packaging/debian-build-in packaging/debian-cross packaging/reproducible \
              packaging/rpm-build packaging/test-packages

# The release archive: its Debian packages where they can be built and tested, otherwise `make distcheck-smoke`. A
# variable contains $(MAKE), because `make -n` executes lines that contain it themselves; such a line also has no
# jobserver, so set -j.
release_fallback = $(MAKE) $(AM_MAKEFLAGS) -j "$$(nproc)" distcheck-smoke
check-release:
	bash $(top_srcdir)/packaging/check-release . || { test $$? -eq 77 && $(release_fallback); }
.PHONY: check-release
