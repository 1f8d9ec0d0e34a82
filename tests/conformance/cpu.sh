#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole conformance suite on the cpu.
exec "$builddir/ctrt" check
