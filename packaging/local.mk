# Files for distributions, and the tests of packages; doc/releasing.md describes them.
EXTRA_DIST += packaging/apt-repo packaging/ctrt.spec packaging/debian-build packaging/test-packages \
    debian/changelog debian/control debian/copyright debian/ctrt-doc.docs debian/ctrt.install debian/ctrt.manpages \
    debian/libctrt-cuda.install debian/libctrt-dev.examples debian/libctrt-dev.install debian/libctrt-plugins.install \
    debian/libctrt0.install debian/libctrt0.symbols debian/opened-libraries debian/rules debian/source/format \
    debian/tests/consumers debian/tests/control debian/tests/digits debian/tests/mpi debian/tests/pkg-config \
    debian/tests/plugin
