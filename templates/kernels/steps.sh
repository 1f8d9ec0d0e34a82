# Those ops of the kernels whose names match OPS against a reference; each of these kernels has to run. Then a network.
check --op "${OPS:-relu}" ./@stem@.so
CTRT_DEVICE=cpu CTRT_LOG=debug ./try 2>log
tail -n 2 log
