# The contract of the engine's functions; then two ranks train with it: they exchange gradients, and end with the same
# parameters.
check --contract --op "${CHECKS:-*}" ./@stem@.so
CTRT_COMM=template CTRT_STRATEGY=distributed CTRT_DEVICE=cpu equal_ranks ./try
