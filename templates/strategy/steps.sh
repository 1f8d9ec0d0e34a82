# Two ranks with a mean every 25 steps: the program makes 50, so that both end with the same parameters.
CTRT_STRATEGY=template CTRT_DEVICE=cpu TEMPLATE_STEPS=25 equal_ranks ./try
