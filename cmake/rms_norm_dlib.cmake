# License: Boost Software License   See LICENSE.txt for the full license.

# Looks at the target dlib::dlib for what decides how this library is built:
#   DLIB_RMS_NORM_DLIB_HEADERS       the folder that holds dlib/
#   DLIB_RMS_NORM_DLIB_VERSION       as 19.24, and its parts ..._MAJOR and ..._MINOR
#   DLIB_RMS_NORM_DLIB_HAS_ITS_OWN   it has a layer called rms_norm_
#   DLIB_RMS_NORM_DLIB_HAS_USE_CUDA  cuda::use_cuda() tells whether CUDA is on
#   DLIB_RMS_NORM_DLIB_HAS_CUDA      it was built with CUDA
#   DLIB_RMS_NORM_DLIB_KIND          the above in words
# Nothing is kept in the cache: the next run of CMake can have another dlib.

function(rms_norm_look_in_dlib header pattern variable)
    set(found FALSE)
    if(EXISTS ${DLIB_RMS_NORM_DLIB_HEADERS}/dlib/${header})
        file(STRINGS ${DLIB_RMS_NORM_DLIB_HEADERS}/dlib/${header} lines REGEX "${pattern}")
        if(lines)
            set(found TRUE)
        endif()
    endif()
    set(${variable} ${found} PARENT_SCOPE)
endfunction()

# A dlib that is a folder of the same project has generator expressions in its properties.
get_target_property(rms_norm_dlib_include_dirs dlib::dlib INTERFACE_INCLUDE_DIRECTORIES)
string(REGEX REPLACE "\\$<BUILD_INTERFACE:([^>]*)>" "\\1"
    rms_norm_dlib_include_dirs "${rms_norm_dlib_include_dirs}")
list(FILTER rms_norm_dlib_include_dirs EXCLUDE REGEX "\\$<")
unset(DLIB_RMS_NORM_DLIB_HEADERS CACHE)
find_path(DLIB_RMS_NORM_DLIB_HEADERS dlib/dnn/layers.h
    HINTS ${rms_norm_dlib_include_dirs}
    NO_CACHE REQUIRED)

rms_norm_look_in_dlib(dnn/layers.h "class rms_norm_" DLIB_RMS_NORM_DLIB_HAS_ITS_OWN)
rms_norm_look_in_dlib(cuda/tensor.h "cuda::use_cuda\\(\\)" DLIB_RMS_NORM_DLIB_HAS_USE_CUDA)

# An installed dlib says in its config.h that it has CUDA, one in the same project in its flags.
rms_norm_look_in_dlib(config.h "^#define DLIB_USE_CUDA" DLIB_RMS_NORM_DLIB_HAS_CUDA)
get_target_property(rms_norm_dlib_options dlib::dlib INTERFACE_COMPILE_OPTIONS)
if(rms_norm_dlib_options MATCHES "DLIB_USE_CUDA")
    set(DLIB_RMS_NORM_DLIB_HAS_CUDA TRUE)
endif()

if(NOT dlib_VERSION)
    # dlib as a folder of the same project
    set(dlib_VERSION ${DLIB_VERSION})
endif()
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" DLIB_RMS_NORM_DLIB_VERSION "${dlib_VERSION}")
set(DLIB_RMS_NORM_DLIB_MAJOR ${CMAKE_MATCH_1})
set(DLIB_RMS_NORM_DLIB_MINOR ${CMAKE_MATCH_2})
set(DLIB_RMS_NORM_DLIB_KIND "dlib ${DLIB_RMS_NORM_DLIB_VERSION} without CUDA")
if(DLIB_RMS_NORM_DLIB_HAS_CUDA)
    set(DLIB_RMS_NORM_DLIB_KIND "dlib ${DLIB_RMS_NORM_DLIB_VERSION} with CUDA")
endif()
