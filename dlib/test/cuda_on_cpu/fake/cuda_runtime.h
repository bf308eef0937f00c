// License: Boost Software License   See LICENSE.txt for the full license.
#include "cuda_runtime_api.h"
