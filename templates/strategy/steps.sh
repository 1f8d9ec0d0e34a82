# The contract of the strategy's functions; then two ranks with a mean every 25 steps: the program makes 50, so that
# both end with the same parameters.
check --contract --op "${CHECKS:-*}" ./@stem@.so
CTRT_STRATEGY=template CTRT_DEVICE=cpu TEMPLATE_STEPS=25 equal_ranks ./try
