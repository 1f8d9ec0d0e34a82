# Two ranks train with the engine: they exchange gradients, and end with the same parameters.
CTRT_COMM=template CTRT_STRATEGY=distributed CTRT_DEVICE=cpu equal_ranks ./try
