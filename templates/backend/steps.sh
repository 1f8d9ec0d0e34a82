# The contract of the plugin's functions; the ops whose names match OPS (all) against a reference, of which those
# without a kernel here use the CPU and are skipped; then a network, whose program prints which ops ran on the CPU.
check --contract --op "${CHECKS:-*}" ./@stem@.so
check --op "${OPS:-*}" ./@stem@.so
CTRT_DEVICE=template CTRT_FALLBACK=cpu ./try
