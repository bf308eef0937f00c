# shellcheck shell=sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Read by the scripts that run the Transformer: how OpenBLAS is to work. The example has threads of
# its own, and OpenBLAS 0.3.21 takes newer AMD processors for ones without AVX-512.

export OPENBLAS_NUM_THREADS=1
if grep -qw avx512f /proc/cpuinfo && grep -qw avx512dq /proc/cpuinfo &&
    grep -qw avx512bw /proc/cpuinfo && grep -qw avx512vl /proc/cpuinfo
then
    export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE:-SKYLAKEX}"
fi
