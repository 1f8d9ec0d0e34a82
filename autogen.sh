#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Generates ./configure from configure.ac. Run it once in a git clone; a release archive contains ./configure.
set -eu
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize pkg-config; do
    command -v "$tool" >/dev/null || {
        echo "autogen.sh: $tool is missing; install autoconf, automake (1.16 or later), libtool and pkg-config" >&2
        exit 1
    }
done
exec autoreconf --install "$@"
