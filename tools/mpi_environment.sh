# shellcheck shell=sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Read by the scripts that start mpirun.

# Open MPI wants to be told that root means it.
if [ "$(id -u)" = 0 ]
then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
