# The contract, with and without the option; then a network on an asynchronous device, whose memory the policy manages.
check --contract --op "${CHECKS:-*}" ./@stem@.so
check --contract --options limit=100000 ./@stem@.so
CTRT_DEVICE=sim:0 CTRT_FALLBACK=cpu CTRT_MEMORY=template ./try
