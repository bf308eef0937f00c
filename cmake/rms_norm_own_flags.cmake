# License: Boost Software License   See LICENSE.txt for the full license.

# The flags that this project's results depend on, for its own library and tests. They come after
# those of the user (CMAKE_CXX_FLAGS, add_compile_options()), so the bits do not depend on them.

function(rms_norm_set_own_flags target)
    # The order of the roundings is part of the contract: nothing is reordered or fused.
    target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-fno-fast-math -ffp-contract=off>"
        "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--fmad=false --ftz=false --prec-div=true --prec-sqrt=true>")
    # g++ 12 links code into a -ffast-math library that makes denormals zero in the whole program.
    target_link_options(${target} PRIVATE "SHELL:-O3 -fno-fast-math")
    # Highway compiles a source once per instruction set by including it again.
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()
