# Those ops of the kernels whose names match OPS against a reference; the suite checks the kernels that the library
# chooses. Then a network.
check --op "${OPS:-relu}" ./@stem@.so
CTRT_DEVICE=cpu CTRT_LOG=debug ./try 2>log
tail -n 2 log
grep -q 'template: relu of' log || { echo "the library did not choose the kernel"; exit 1; }
