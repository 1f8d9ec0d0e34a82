# Measurements; built by `make bench`, never by `make`.
EXTRA_DIST +=
