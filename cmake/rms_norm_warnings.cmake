# License: Boost Software License   See LICENSE.txt for the full license.

# The warnings that this project's own files are kept free of. dlib's headers are system
# headers of an imported target and are left alone.

function(rms_norm_enable_warnings target)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion>
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${DLIB_RMS_NORM_WARNINGS_AS_ERRORS}>>:-Werror>)
endfunction()
