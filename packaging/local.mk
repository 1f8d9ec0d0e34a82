# Files for distributions, and the tests of packages; doc/releasing.md describes them. debian/ is not in the release
# archive: a source package adds it.
EXTRA_DIST += packaging/apt-repo packaging/ctrt.spec packaging/debian-build packaging/debian-cross \
    packaging/test-packages
